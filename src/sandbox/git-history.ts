import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { within } from "../core/within.ts";
import { plainName } from "../policy/read-doubts.ts";
import type { GitObjects } from "../policy/shell/effects.ts";
import type { GitNames } from "../policy/shell/touched.ts";
import { createGitIndexReader, gitDirectoriesOf, type ReadGitIndex, refsStateOf } from "./git-directories.ts";
import type { Sandbox } from "./sandbox.ts";

/** Finds the names of the files that repositories hold, also in their history. */
export type GitHistory = ReturnType<typeof createGitHistory>;

/** Names of one repository that are known, and the state of the search for more. */
interface KnownHistory {
  /** The state of its refs when it was last searched; undefined if there are too many to compare. */
  state: string | undefined;
  names: Set<string>;
  tips: readonly string[];
  /** Reason why the names are not known. */
  problem: string | undefined;
  search: Promise<void> | undefined;
  /** Names that contain one of the substrings, by all substrings; `count` is the number of names that were searched. */
  selected: Map<string, { count: number; names: string[] }>;
}

/** Creates it. A history is searched when it is first needed, and after that only its new commits. */
export function createGitHistory({
  sandbox,
  env,
  maxWaitMs = 2_000,
  maxSearchMs = 120_000,
  maxNames = 500_000,
}: {
  sandbox: Pick<Sandbox, "confine">;
  /** Returns the environment of commands. */
  env(): Readonly<Record<string, string>>;
  /** Time that one call waits for a search, which goes on without it. */
  maxWaitMs?: number;
  maxSearchMs?: number;
  maxNames?: number;
}) {
  const histories = new Map<string, KnownHistory>();
  const closing = new AbortController();
  const readIndex = createGitIndexReader();

  async function search(top: string, history: KnownHistory): Promise<void> {
    const signal = AbortSignal.any([closing.signal, AbortSignal.timeout(maxSearchMs)]);
    const options = { top, env: env(), signal, maxNames };
    try {
      const isNew = history.tips.length === 0 || history.tips.length > maxTips;
      // Commits that it covered may have been removed meanwhile.
      const { names, tips } = await searchHistory(sandbox, { ...options, known: isNew ? [] : history.tips }).catch(
        async (cause: unknown) => {
          if (isNew || signal.aborted || cause instanceof TooManyNames) throw cause;
          return await searchHistory(sandbox, { ...options, known: [] });
        },
      );
      for (const name of names) history.names.add(name);
      if (history.names.size > maxNames) throw new TooManyNames();
      history.tips = tips;
      history.problem = undefined;
    } catch (cause) {
      history.problem = problemOf(cause);
    }
  }

  return {
    /** Returns the names of the repository in a top directory. */
    async namesOf(top: string): Promise<GitNames> {
      const git = gitDirectoriesOf(top);
      if (git === undefined) return noNames;
      const state = refsStateOf(git);
      const history = histories.get(top) ?? emptyHistory();
      if (histories.size >= maxRepositories && !histories.has(top)) histories.clear();
      histories.set(top, history);
      const isKnown = state !== undefined && history.state === state;
      if (!isKnown && history.search === undefined) {
        history.state = state;
        history.search = search(top, history).finally(() => {
          history.search = undefined;
        });
      }
      await within(maxWaitMs, Promise.resolve(history.search), () => undefined);
      return namesIn(history, join(git.own, "index"), readIndex);
    },
    /** Ends all searches. */
    close: (): void => closing.abort(),
  };
}

const emptyHistory = (): KnownHistory => ({
  state: undefined,
  names: new Set(),
  tips: [],
  problem: undefined,
  search: undefined,
  selected: new Map(),
});

/** Outside of repositories. */
const noNames: GitNames = { select: () => [], problem: () => undefined };

function namesIn(history: KnownHistory, index: string, readIndex: ReadGitIndex): GitNames {
  const tracked = readIndex(index);
  return {
    problem(objects) {
      if (tracked === undefined) return "whose index cannot be read";
      if (objects === "index") return undefined;
      return history.search ? "whose history is still being searched" : history.problem;
    },
    select(objects: GitObjects, hints) {
      const staged = selectFrom(tracked ?? [], hints);
      if (objects === "index") return staged;
      return [...new Set([...staged, ...selectKnown(history, hints)])];
    },
  };
}

/** Selects from the names of a history; those that it was searched for before are not searched again. */
function selectKnown({ names, selected }: KnownHistory, hints: readonly string[] | undefined): readonly string[] {
  const key = JSON.stringify(hints ?? null);
  const before = selected.get(key) ?? { count: 0, names: [] };
  const found = [...before.names, ...selectFrom(names.values().drop(before.count), hints)];
  if (selected.size >= maxSelections) selected.clear();
  // Names are only added, at the end.
  selected.set(key, { count: names.size, names: found });
  return found;
}

function selectFrom(names: Iterable<string>, hints: readonly string[] | undefined): string[] {
  if (hints === undefined) return [...names];
  return [...names].filter((name) => {
    const folded = name.toLowerCase();
    return !plainName.test(name) || hints.some((hint) => folded.includes(hint));
  });
}

function problemOf(cause: unknown): string {
  if (cause instanceof TooManyNames) return `whose history has ${cause.message}`;
  if (cause instanceof Error && cause.name === "TimeoutError") return "whose history takes too long to search";
  return `whose history cannot be searched (${cause instanceof Error ? cause.message : String(cause)})`;
}

const maxTips = 10_000;
const maxRepositories = 50;
const maxSelections = 8;

/** Result of a search: names of files, and the commits from which it started. */
interface FoundNames {
  names: string[];
  tips: string[];
}

/** A search of one repository. */
interface GitSearch {
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
class TooManyNames extends Error {
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
async function searchHistory(
  sandbox: Pick<Sandbox, "confine">,
  { top, known, env, signal, maxNames }: GitSearch,
): Promise<FoundNames> {
  const place = { agent: "", cwd: top, workspace: top, directories: [] };
  const confined = await sandbox.confine(["/bin/bash", "--noprofile", "--norc", "-c", script], place);
  const [program, ...args] = confined.argv;
  let child: ChildProcess | undefined;
  const stop = () => child && killGroup(child);
  signal.addEventListener("abort", stop, { once: true });
  try {
    child = spawn(program, args, {
      cwd: top,
      env: { ...env, ...confined.env, ...offline },
      stdio: ["pipe", "pipe", "pipe", ...confined.descriptors],
      // In a separate group, which is killed as a whole.
      detached: true,
    });
    // Without a free descriptor it has no pipes, and reports that later.
    child.on("error", () => undefined);
    const { stdin, stdout, stderr } = child;
    if (!stdin || !stdout || !stderr) throw new Error("git has no pipes: the service may open no more files");
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

/** Bytes of names and commits that one search may find. */
const maxNameBytes = 64 * 1024 * 1024;

async function readNames(output: AsyncIterable<Buffer>, maxNames: number): Promise<FoundNames> {
  const found: FoundNames = { names: [], tips: [] };
  let rest: Buffer[] = [];
  let into = found.tips;
  let size = 0;
  for await (const chunk of output) {
    size += chunk.length;
    if (size > maxNameBytes) throw new TooManyNames(`names of more than ${maxNameBytes / 1024 ** 2} MiB`);
    const end = chunk.lastIndexOf(0);
    if (end === -1) {
      rest.push(chunk);
      continue;
    }
    const names = Buffer.concat([...rest, chunk.subarray(0, end)]).toString();
    rest = [chunk.subarray(end + 1)];
    for (const entry of names.split("\0")) {
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
