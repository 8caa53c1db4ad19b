import { isUtf8 } from "node:buffer";
import { accessSync, type BigIntStats, close, constants } from "node:fs";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import { bytesOf, maxSyncBytes, type OpenFile, readThrough } from "../../tool/open-file.ts";
import type { PlanContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";

const maxTextBytes = 16 * 1024 * 1024;
/** Size up to which files are hashed. */
const maxHashedBytes = 1024 * 1024 * 1024;
const byteOrderMark = "\uFEFF";

/** A file as it was read. */
export interface ExistingFile {
  stats: BigIntStats;
  sha256: string;
  /** Without a byte order mark; undefined if it is over 16 MiB. */
  text: string | undefined;
  /** Its byte order mark; empty without one. */
  mark: string;
  /** True if encoding the text again gives the same bytes. */
  isUtf8: boolean;
  /** The whole content of a small file. */
  bytes: Uint8Array | undefined;
}

/** Reads the file that would be replaced; undefined if there is none. Throws if it cannot be replaced. */
export async function readExisting(path: PathHandle): Promise<ExistingFile | undefined> {
  using file = openTarget(path);
  return file && (await contentOf(path, file));
}

/** Opens the file that would be replaced; throws if it cannot be replaced. */
export function openTarget(path: PathHandle): OpenFile | undefined {
  const file = path.open();
  if (file === undefined) return undefined;
  try {
    if (file.stats.isDirectory()) throw new ToolFailure(`${path.absolute} is a directory, not a file. Name a file.`);
    if (file.stats.nlink > 1n) {
      throw new ToolFailure(
        `${path.absolute} has other names (hard links), which would keep the old content. Remove it first.`,
      );
    }
    checkWritable(path);
    return file;
  } catch (error) {
    file[Symbol.dispose]();
    throw error;
  }
}

/** Opens the file that is being replaced; its data is freed in the background. */
export function openReplaced(path: PathHandle): OpenFile | undefined {
  const file = openTarget(path);
  if (file === undefined) return undefined;
  // Closing the replaced file frees its data, which takes longer than replacing it, so it is not waited for.
  return { ...file, [Symbol.dispose]: () => close(file.fd, () => {}) };
}

/** Reads an open file. */
export async function contentOf({ absolute }: Pick<PathHandle, "absolute">, file: OpenFile): Promise<ExistingFile> {
  const { stats } = file;
  const hasText = stats.size <= maxTextBytes;
  const tooLarge = () =>
    new ToolFailure(`${absolute} is too large to change, or grows while it is read. Change it by a command.`);
  if (stats.size > maxHashedBytes) throw tooLarge();
  const chunks: Uint8Array[] = [];
  let size = 0;
  const sha256 = await readThrough(bytesOf(file), (chunk) => {
    size += chunk.length;
    if (size > (hasText ? maxTextBytes : maxHashedBytes)) throw tooLarge();
    // A larger file is needed only for its byte order mark.
    if (chunks.length === 0 || hasText) chunks.push(chunk);
  });
  const [first = new Uint8Array(), ...more] = chunks;
  const bytes = more.length === 0 ? Buffer.from(first.buffer, first.byteOffset, first.length) : Buffer.concat(chunks);
  const text = bytes.toString("utf8");
  const mark = text.startsWith(byteOrderMark) ? byteOrderMark : "";
  return {
    stats,
    sha256,
    mark,
    text: hasText ? text.slice(mark.length) : undefined,
    isUtf8: isUtf8(bytes),
    bytes: stats.size <= maxSyncBytes ? bytes : undefined,
  };
}

/** Reports whether a file holds exactly these bytes, which takes a fraction of the time of a hash. */
export async function holdsExactly(file: OpenFile, bytes: Uint8Array): Promise<boolean> {
  return Buffer.compare(await bytesOf(file)(0, bytes.length + 1), bytes) === 0;
}

function checkWritable({ absolute }: PathHandle): void {
  try {
    accessSync(absolute, constants.W_OK);
  } catch (cause) {
    throw new ToolFailure(`${absolute} is read-only. Make it writable first.`, { cause });
  }
}

/** Returns the content of a file; throws unless the session tree has read that version of it. */
export async function readKnown<Content extends Pick<ExistingFile, "sha256">>(
  { absolute }: Pick<PathHandle, "absolute">,
  content: () => Promise<Content> | Content,
  reads: PlanContext["reads"],
): Promise<Content> {
  // Asked first: to hash a large file takes long.
  const known = await reads.get(absolute);
  if (known === undefined) {
    throw new ToolFailure(`You must read the file ${absolute} before overwriting it. Use the Read tool first`);
  }
  const found = await content();
  if (known === found.sha256) return found;
  throw new ToolFailure(
    `File ${absolute} has been modified since it was last read. Please read the file again before modifying it.`,
  );
}

/** Identifies a version of a file. */
export const versionOf = (file: ExistingFile | undefined) => file?.sha256 ?? "none";

/** Makes the error for a file that has changed since its approval. */
export const changedSinceApproval = ({ absolute }: PathHandle) =>
  new ChangedAfterApproval(`${absolute} has changed since the call was approved. Read it and call the tool again.`);
