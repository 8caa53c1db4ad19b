import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Names of stub programs; those that begin with `no` fail with status 3. */
export const stubs = ["p", "git", "l-s", "nope", "x.y"];

/** The exit status of a stub. */
export function statusOf(stub: string): number {
  return stub.startsWith("no") ? 3 : 0;
}

/** A line for bash. */
export interface Given {
  text: string;
  /** Disables globbing. */
  noGlob: boolean;
}

/**
 * Gives lines to bash itself and returns the argv of every program that each of them ran. No program is ever run: there
 * are only functions in their place that write down their words, and PATH leads nowhere.
 */
export function runByBash(lines: readonly Given[]): string[][][] {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-fuzz-"));
  try {
    const work = join(directory, "work");
    mkdirSync(work);
    // Names that a glob matches, so that an undetected glob shows.
    for (const name of ["a", "b", "ab", "-n", "x y", "file", "[", "a]"]) writeFileSync(join(work, name), "");
    writeFileSync(
      join(directory, "lines"),
      lines.map(({ text, noGlob }) => `${noGlob ? "-" : "+"}f\0${text}\0`).join(""),
    );
    writeFileSync(join(directory, "script"), script);
    execFileSync("/bin/bash", ["--norc", "--noprofile", join(directory, "script"), directory], {
      cwd: work,
      env: { PATH: "/nonexistent", LC_ALL: "C.UTF-8", HOME: "/home/nobody" },
      stdio: ["ignore", "ignore", "ignore"],
      timeout: 120_000,
    });
    return parse(readFileSync(join(directory, "calls"), "utf8"), lines.length);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

const script = `
exec 3>>"$1/calls" 4<"$1/lines"
# In one write, which a line end would split: the stages of a pipeline write at the same time.
note() {
  local call
  printf -v call '%s\\x02' call "$#" "$@"
  printf '%s' "\${call//$'\\n'/$'\\x01'}" >&3
}
# In a word it prints a here-document.
cat() {
  local text
  IFS= read -r -d '' text
  printf %s "$text"
}
${stubs.map((name) => `${name}() { note ${name} "$@"; return ${statusOf(name)}; }`).join("\n")}
while IFS= read -r -d '' -u 4 mode && IFS= read -r -d '' -u 4 line; do
  printf 'line\\x02' >&3
  set "$mode"
  :
  eval "$line"
done
printf 'end\\x02' >&3
`;

function parse(output: string, count: number): string[][][] {
  const fields = output.split("\x02").map((field) => field.replaceAll("\x01", "\n"));
  const lines: string[][][] = [];
  for (let at = 0; at < fields.length; ) {
    const kind = fields[at++];
    if (kind === "end") break;
    if (kind === "line") lines.push([]);
    if (kind !== "call") continue;
    const size = Number(fields[at++]);
    lines.at(-1)?.push(fields.slice(at, at + size));
    at += size;
  }
  if (lines.length !== count) throw new Error(`bash ran ${lines.length} of ${count} lines`);
  return lines;
}
