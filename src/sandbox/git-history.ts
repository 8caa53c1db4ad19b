import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { plainName } from "../policy/read-doubts.ts";
import type { GitObjects } from "../policy/shell/effects.ts";
import type { GitNames } from "../policy/shell/git-names.ts";
import { gitDirectoriesOf, refsStateOf } from "./git-directories.ts";
import { createGitIndexReader, type ReadGitIndex } from "./git-index.ts";
import { searchHistory, TooManyNames } from "./git-search.ts";
import type { Sandbox } from "./sandbox.ts";

/** Finds the names of the files that repositories hold, also in their history. */
export interface GitHistory {
  /** Returns the names of the repository in a top directory. */
  namesOf(top: string): Promise<GitNames>;
  /** Ends all searches. */
  close(): void;
}

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
}): GitHistory {
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
    async namesOf(top) {
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
      const waited = new AbortController();
      const late = delay(maxWaitMs, undefined, { signal: waited.signal }).catch(() => {});
      await Promise.race([history.search, late]);
      waited.abort();
      return namesIn(history, join(git.own, "index"), readIndex);
    },
    close: () => closing.abort(),
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
