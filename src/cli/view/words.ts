import type { DescEnum } from "@bufbuild/protobuf";
import { enumWord, shellCommand } from "../../view/words.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";

export { durationOf, momentOf, sizeOf } from "../../view/quantities.ts";

/** The name of an enum value in words: `PERMISSION_OUTCOME_REJECT` is `reject`. */
export function wordOf({ values }: DescEnum, value: number): string {
  return enumWord(Object.fromEntries(values.map(({ localName, number }) => [localName, number])), value);
}

/** A command line that can be pasted into a shell and is harmless to the terminal. */
export function commandLine(...words: readonly string[]): string {
  return terminalSafe(shellCommand(words));
}
