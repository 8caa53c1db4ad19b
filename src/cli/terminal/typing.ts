export { inertMs } from "../../view/asks.ts";

/** What makes a terminal mark pasted text, and what ends that. */
export const markPastes = { on: "\x1b[?2004h", off: "\x1b[?2004l" };

/** Says of each key in its turn whether it is of pasted text: that must not answer anything by the keys that it happens to hold. */
export function createPasteReader(): (key: { name?: string }) => boolean {
  let pasting = false;
  return ({ name }) => {
    if (name === "paste-start") pasting = true;
    if (name === "paste-end") pasting = false;
    return pasting;
  };
}
