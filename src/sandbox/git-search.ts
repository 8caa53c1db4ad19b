import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import type { Sandbox } from "./sandbox.ts";

/** Result of a search: names of files, and the commits from which it started. */
export interface FoundNames {
  names: string[];
  tips: string[];
}

/** A search of one repository. */
export interface GitSearch {
  /** The top directory. */
  top: string;
  /** Commits that an earlier search has covered with all before them. */
  known: readonly string[];
  /** The environment of commands. */
  env: Readonly<Record<string, string>>;
  signal: AbortSignal;
  maxNames: number;
}

/** Thrown if a history names more files than are stored. */
export class TooManyNames extends Error {
  override name = "TooManyNames";
}

/**
 * Prints the commits of all refs, an empty entry, and each name that a commit added, changed or removed; of a merge those that
 * differ from all of its parents. The settings of a repository may name programs: none of them concerns these options.
 */
const script = `
set -o pipefail
{ git for-each-ref --format='%(objectname)'; git rev-parse -q --verify HEAD; } | sort -u | tr '\\n' '\\0'
printf '\\0'
git --no-pager -c log.showSignature=false -c log.showRoot=true log --stdin --all --reflog --format= --name-only \\
  --no-renames --no-ext-diff --no-textconv -c -z | LC_ALL=C sort -zu
`;

/** Variables with which git reaches no other repository: objects that are missing stay missing. */
const offline = { GIT_ALLOW_PROTOCOL: "none", GIT_NO_LAZY_FETCH: "1", GIT_TERMINAL_PROMPT: "0" };

/** Finds the names of all files in the history of a repository, in the sandbox of commands. Throws if git fails. */
export async function searchHistory(
  sandbox: Pick<Sandbox, "confine">,
  { top, known, env, signal, maxNames }: GitSearch,
): Promise<FoundNames> {
  const place = { agent: "", cwd: top, workspace: top, directories: [] };
  const confined = await sandbox.confine(["/bin/bash", "--noprofile", "--norc", "-c", script], place);
  const [program, ...args] = confined.argv;
  const child = spawn(program, args, {
    cwd: top,
    env: { ...env, ...confined.env, ...offline },
    stdio: ["pipe", "pipe", "pipe", ...confined.descriptors],
    // In a separate group, which is killed as a whole.
    detached: true,
  });
  const stop = () => killGroup(child);
  signal.addEventListener("abort", stop, { once: true });
  try {
    const { stdin, stdout, stderr } = child;
    if (!stdin || !stdout || !stderr) throw new Error("git has no pipes");
    // It may end before it has read all.
    stdin.on("error", () => {});
    stdin.end(known.map((commit) => `^${commit}\n`).join(""));
    const [found, errors, [code]] = await Promise.all([
      readNames(stdout, maxNames),
      text(stderr),
      once(child, "close"),
    ]);
    signal.throwIfAborted();
    if (code !== 0) throw new Error(errors.trim().split("\n", 1)[0] || `git ended with ${code}`);
    return found;
  } finally {
    signal.removeEventListener("abort", stop);
    stop();
    await confined.release();
  }
}

async function readNames(output: AsyncIterable<Buffer>, maxNames: number): Promise<FoundNames> {
  const found: FoundNames = { names: [], tips: [] };
  let rest = Buffer.alloc(0);
  let into = found.tips;
  for await (const chunk of output) {
    const bytes = Buffer.concat([rest, chunk]);
    const end = bytes.lastIndexOf(0);
    rest = bytes.subarray(end + 1);
    for (const entry of end === -1 ? [] : bytes.toString("utf8", 0, end).split("\0")) {
      if (entry !== "") into.push(entry);
      else into = found.names;
    }
    if (found.names.length > maxNames) throw new TooManyNames(`more than ${maxNames} names`);
  }
  return found;
}

function killGroup({ pid, exitCode, signalCode }: ChildProcess): void {
  if (pid === undefined || exitCode !== null || signalCode !== null) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It has ended meanwhile.
  }
}
