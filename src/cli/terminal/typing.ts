export { inertMs } from "../../view/asks.ts";

/** Control sequences that make a terminal mark pasted text, and stop that. */
export const markPastes = { on: "\x1b[?2004h", off: "\x1b[?2004l" };

/** Returns a function that detects, key by key, pasted text, whose characters must not act as keys. */
export function createPasteReader(): (key: { name?: string }) => boolean {
  let pasting = false;
  return ({ name }) => {
    if (name === "paste-start") pasting = true;
    if (name === "paste-end") pasting = false;
    return pasting;
  };
}
