import { createHash } from "node:crypto";
import { type BigIntStats, constants } from "node:fs";
import { access } from "node:fs/promises";
import * as z from "zod";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import { defineTool, type PlanContext, type Tool } from "../tool/tool.ts";
import { pathAsks, type ResolvedPath } from "../tool/workspace.ts";
import { compare } from "./diff.ts";
import { bytesOf, openFile, readThrough } from "./open-file.ts";
import { replaceFile } from "./replace-file.ts";

const largestCompared = 1_048_576;
const longestDiff = 16_384;
const byteOrderMark = "\uFEFF";

/** Writes whole files. An existing one must have been read in its present form, so that nobody's work is overwritten unseen. */
export function createWrite(): Tool {
  const inTurn = createTurns();
  return defineTool({
    name: "write",
    description: [
      "Write a whole file, creating it and its folders if they are missing.",
      "Read an existing file with the read tool before overwriting it.",
    ].join(" "),
    input: z.object({
      filePath: z.string().min(1).describe("File, absolute or relative to the workspace"),
      content: z.string().describe("The whole new content"),
    }),
    destructive: true,
    async plan({ filePath, content }, { workspace, reads }) {
      const path = await workspace.resolve(filePath);
      // Set by inspect: the version that people were shown.
      const seen: { version?: string } = {};
      return {
        title: path.pattern,
        asks: pathAsks("edit", path, { filepath: path.absolute }),
        binds: [path],
        reveals: [path],
        path,
        seen,
        async inspect() {
          const before = await look(path);
          await checkRead(path, before, reads);
          seen.version = versionOf(before);
          return {
            preview: { diff: compare(path.pattern, before, newText(before, content)).diff, paths: [path.pattern] },
          };
        },
      };
    },
    async execute({ content }, { plan: { path, seen }, reads, signal, workspace }) {
      return inTurn(path.absolute, async () => {
        signal.throwIfAborted();
        const before = await look(path);
        if (seen.version !== undefined && seen.version !== versionOf(before)) throw changed(path);
        // Outside the workspace the plan was not inspected.
        await checkRead(path, before, reads);
        const text = newText(before, content);
        await replaceFile(workspace, path, before?.stats, Buffer.from(text));
        await reads.record(path.absolute, createHash("sha256").update(text).digest("hex"));
        const { diff, additions, deletions } = compare(path.pattern, before, text);
        return {
          output: "Wrote file successfully.",
          metadata: {
            filepath: path.absolute,
            exists: before !== undefined,
            additions,
            deletions,
            diff: shorten(diff),
          },
        };
      });
    },
  });
}

interface ExistingFile {
  stats: BigIntStats;
  sha256: string;
  /** Absent if it is too large to compare. */
  text: string | undefined;
  hasByteOrderMark: boolean;
}

/** Looks at the file that would be replaced; undefined if there is none. Throws if it is not one that can be replaced. */
async function look(path: ResolvedPath): Promise<ExistingFile | undefined> {
  await using file = await openFile(path);
  if (file === undefined) return undefined;
  const stats = await file.stat({ bigint: true });
  if (stats.isDirectory()) throw new ToolFailure(`${path.absolute} is a folder, not a file. Name a file.`);
  if (stats.nlink > 1n) {
    throw new ToolFailure(
      `${path.absolute} has other names (hard links), which would keep the old content. Remove it first.`,
    );
  }
  await access(path.absolute, constants.W_OK).catch((cause: unknown) => {
    throw new ToolFailure(`${path.absolute} is read-only. Make it writable first.`, { cause });
  });
  const chunks: Uint8Array[] = [];
  const sha256 = await readThrough(bytesOf(file), (chunk) => {
    // Of a larger one only the beginning is needed, for its byte order mark.
    if (chunks.length === 0 || stats.size <= largestCompared) chunks.push(chunk);
  });
  const text = Buffer.concat(chunks).toString("utf8");
  const hasByteOrderMark = text.startsWith(byteOrderMark);
  return { stats, sha256, hasByteOrderMark, text: stats.size <= largestCompared ? text : undefined };
}

async function checkRead(
  { absolute }: ResolvedPath,
  before: ExistingFile | undefined,
  reads: PlanContext["reads"],
): Promise<void> {
  if (before === undefined) return;
  const known = await reads.get(absolute);
  if (known === undefined) {
    throw new ToolFailure(`You must read the file ${absolute} before overwriting it. Use the Read tool first`);
  }
  if (known === before.sha256) return;
  throw new ToolFailure(
    `File ${absolute} has been modified since it was last read. Please read the file again before modifying it.`,
  );
}

const versionOf = (file: ExistingFile | undefined) => file?.sha256 ?? "none";

const changed = ({ absolute }: ResolvedPath) =>
  new ChangedAfterApproval(`${absolute} has changed since the call was approved. Read it and call the tool again.`);

function newText(before: ExistingFile | undefined, content: string): string {
  const isLost = before?.hasByteOrderMark && !content.startsWith(byteOrderMark);
  return isLost ? byteOrderMark + content : content;
}

function shorten(diff: string): string {
  const bytes = Buffer.from(diff);
  if (bytes.length <= longestDiff) return diff;
  return `${bytes.subarray(0, longestDiff).toString("utf8")}\n(The diff is cut: it has ${bytes.length} bytes.)`;
}

/** Of the works on one path each starts when the one before it has ended. */
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
