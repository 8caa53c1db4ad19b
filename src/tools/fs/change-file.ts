import { createHash } from "node:crypto";
import { dirname } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import type { OpenFile } from "../../tool/open-file.ts";
import type { Plan, PlanContext, ToolContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { compare, type FileChange } from "./diff.ts";
import {
  changedSinceApproval,
  contentOf,
  type ExistingFile,
  holdsExactly,
  openReplaced,
  openTarget,
  readKnown,
  versionOf,
} from "./existing-file.ts";
import { createLeftovers } from "./leftovers.ts";
import { type CommandsMeanwhile, replaceFile } from "./replace-file.ts";

const maxDiffLength = 16_384;

/** A new version of a file. */
interface Made {
  text: string;
}

/** Makes the new version from the present one, undefined for a new file. A byte order mark is preserved without it. */
type Make<M extends Made> = (before: ExistingFile | undefined, path: string) => M;

/** The planned change of one file. */
interface Planned<M extends Made> {
  path: PathHandle;
  seen: { last?: Seen<M> };
}

/** The state that approvers saw: present version, new version and difference. */
interface Seen<M extends Made> {
  version: string;
  mark: string;
  made: M;
  before: Pick<ExistingFile, "text"> | undefined;
  /** Content of a small old version. */
  bytes: Uint8Array | undefined;
  change?: FileChange;
}

export type FileChanges = ReturnType<typeof createFileChanges>;

/**
 * Plans and executes changes of single files for all tools. They ask `edit`, an existing file must have been read in its present
 * version, approvers see a diff, and only the version that they saw is replaced. Changes of one file run one after the other.
 */
export function createFileChanges({
  now = Date.now,
  running,
  changed = () => {},
}: {
  now?: () => number;
  running?: CommandsMeanwhile;
  /** Called with each file that may have changed. */
  changed?: (path: string) => void;
} = {}) {
  const leftovers = createLeftovers({ now });
  const turns = createTurns();

  async function inTurn<Result>(path: string, work: () => Promise<Result>): Promise<Result> {
    const result = await turns(path, work).finally(() => changed(path));
    await leftovers.removeFrom(dirname(path));
    return result;
  }

  const replace: typeof replaceFile = (path, before, content, options) =>
    replaceFile(path, before, content, { ...options, ...(running && { running }) });

  return {
    replace,
    /** Runs work while no other call changes any of these files. */
    async inTurns<Result>(paths: readonly string[], work: () => Promise<Result>): Promise<Result> {
      // All calls lock files in the same order, so that no two wait for each other.
      const all = paths.toSorted().reduceRight((inner, path) => () => inTurn(path, inner), work);
      return await all();
    },

    /** Plans to replace the file at a path by a new version. */
    async plan<M extends Made>(filePath: string, make: Make<M>, { workspace, reads }: PlanContext) {
      const path = await workspace.resolve(filePath);
      const seen: Planned<M>["seen"] = {};
      return {
        title: path.pattern,
        asks: path.asks("edit", { filepath: path.absolute }),
        binds: [path],
        reveals: [path],
        path,
        seen,
        async inspect() {
          using file = openTarget(path);
          const next = await nextOf(path, file, make, reads);
          seen.last = next;
          return { preview: () => ({ ...changeOf(path, next), paths: [path.pattern] }) };
        },
      } satisfies Plan & Planned<M>;
    },

    /** Executes the plan; returns the new version and the change, for the metadata. */
    async execute<M extends Made>(
      make: Make<M>,
      { plan: { path, seen }, beforeWrite, reads, signal }: ToolContext & { plan: Planned<M> },
    ): Promise<{ made: M; metadata: JsonObject }> {
      return await inTurn(path.absolute, async () => {
        signal.throwIfAborted();
        using file = openReplaced(path);
        // A plan outside the workspace was not inspected.
        const next = seen.last ?? (await nextOf(path, file, make, reads));
        const content = Buffer.from(next.mark + next.made.text);
        let sha256 = "";
        await replace(path, file?.stats, content, {
          async meanwhile() {
            if (seen.last) await checkSame(path, file, seen.last, reads);
            sha256 = createHash("sha256").update(content).digest("hex");
            await beforeWrite([{ path: path.absolute, sha256 }]);
            changeOf(path, next);
          },
        });
        await reads.record(path.absolute, sha256);
        const { diff, additions, deletions } = changeOf(path, next);
        const exists = file !== undefined;
        return {
          made: next.made,
          metadata: { filepath: path.absolute, exists, additions, deletions, diff: shorten(diff) },
        };
      });
    },
  };
}

/** Makes the next version of a file that the session tree has read. */
async function nextOf<M extends Made>(
  path: PathHandle,
  file: OpenFile | undefined,
  make: Make<M>,
  reads: PlanContext["reads"],
): Promise<Seen<M>> {
  const before = file && (await readKnown(path, () => contentOf(path, file), reads));
  const made = make(before, path.absolute);
  return { version: versionOf(before), mark: before?.mark ?? "", made, before, bytes: before?.bytes };
}

/** Throws unless the file is still the version that approvers saw and that the session tree has read. */
async function checkSame(
  path: PathHandle,
  file: OpenFile | undefined,
  { bytes, version }: Seen<Made>,
  reads: PlanContext["reads"],
): Promise<void> {
  const isSame = file && bytes && (await holdsExactly(file, bytes));
  if (!isSame && versionOf(file && (await contentOf(path, file))) !== version) throw changedSinceApproval(path);
  if (file) await readKnown(path, () => ({ sha256: version }), reads);
}

function changeOf(path: PathHandle, seen: Seen<Made>): FileChange {
  seen.change ??= compare(path.pattern, seen.before, seen.made.text);
  // Freed early: an approver may take long, and the old text may be large.
  seen.before = undefined;
  return seen.change;
}

/** Truncates a diff to the size of metadata. */
export function shorten(diff: string): string {
  const bytes = Buffer.from(diff);
  if (bytes.length <= maxDiffLength) return diff;
  return `${bytes.subarray(0, maxDiffLength).toString("utf8")}\n(The diff is cut: it has ${bytes.length} bytes.)`;
}

/** Creates a queue for each path: work on one path starts when the work before it has ended. */
function createTurns() {
  const last = new Map<string, Promise<unknown>>();
  return async <Result>(path: string, work: () => Promise<Result>): Promise<Result> => {
    const turn = (last.get(path) ?? Promise.resolve()).then(work);
    const ended = turn.catch(() => {});
    last.set(path, ended);
    try {
      return await turn;
    } finally {
      if (last.get(path) === ended) last.delete(path);
    }
  };
}
