import type { HiddenPaths } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { countOf } from "./quantities.ts";

/** The name of an enum value in words: of `ToolErrorReason`, EXECUTOR_LOST is `executor lost`. */
export function enumWord(values: Readonly<Record<string, number>>, value: number): string {
  const name = Object.keys(values).find((key) => values[key] === value);
  return name?.toLowerCase().replaceAll("_", " ") ?? `unknown (${value})`;
}

/** The text with an upper-case first letter. */
export function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A command line that can be pasted into a shell: each word is quoted if it must be. */
export function shellCommand(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

/** Paths that a command does not see, such as `the command cannot read 12 paths: .env, secrets/, …`; empty if it sees everything. */
export function hiddenWords(hidden: HiddenPaths | undefined): string {
  if (hidden === undefined || hidden.count === 0) return "";
  const { count, paths } = hidden;
  const isAll = count <= paths.length;
  return `the command cannot read${isAll ? "" : ` ${countOf(count, "path")}`}: ${[...paths, ...(isAll ? [] : ["…"])].join(", ")}`;
}
