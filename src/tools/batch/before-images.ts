import * as z from "zod";
import type { StartedCall } from "../../core/durability.ts";
import { RequestError } from "../../core/request-error.ts";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import { bytesOf, type OpenFile, openFile, readThrough } from "../../tool/open-file.ts";
import type { ChangeObserver, FileWrite, ToolContext } from "../../tool/tool.ts";
import type { FileChanges } from "../fs/change-file.ts";
import { setAside } from "../fs/replace-file.ts";

const maxImageBytes = 64 * 1024 * 1024;

/** Outcome of restoring the files of a batch. */
export interface Restored {
  /** Files that are as before the batch again. */
  restored: string[];
  /** Files that were left as they are, with the reason. */
  left: { file: string; why: string }[];
}

/** State of a file before the batch; `before` is null if there was no file. */
const beforeImage = z.object({
  file: z.string(),
  before: z
    .object({
      sha256: z.string(),
      output: z.string(),
      size: z.number(),
      mode: z.number(),
      uid: z.number(),
      gid: z.number(),
    })
    .nullable(),
});
type BeforeImage = z.infer<typeof beforeImage>;

/** State that the batch stores before its calls start, and before each write: the images, and what its calls write (null: they remove the file). */
const storedImages = z.object({
  images: z.array(beforeImage),
  writes: z.array(z.object({ file: z.string(), sha256: z.string().nullable() })),
});

/**
 * The files that an atomic batch changes: stores them before the batch starts, observes what its calls write, and can restore
 * them, also after a restart of the service.
 */
export interface BeforeImages extends ChangeObserver {
  /** True once the images are stored and the calls may have started. */
  readonly hasStarted: boolean;
  /** Restores each file that still holds what the batch wrote. */
  restore(): Promise<Restored>;
  /** Removes the stored images. */
  drop(): Promise<void>;
}

/** Creates the before-images of one batch, with those that a former run of it stored. */
export function createBeforeImages(
  { durable, outputs, reads }: Pick<ToolContext, "durable" | "outputs" | "reads">,
  changes: Pick<FileChanges, "inTurns" | "replace">,
): BeforeImages {
  const stored = storedImages.safeParse(durable.memo).data;
  let images = stored?.images ?? [];
  let writes = stored?.writes ?? [];
  let hasStarted = stored !== undefined;
  /** Writes of calls that run at the same time are stored one after the other. */
  let storing = Promise.resolve();

  async function take(file: string): Promise<BeforeImage> {
    using opened = openChanged(file);
    if (opened === undefined) return { file, before: null };
    const { sha256, content } = await readWhole(opened);
    const output = await outputs.store(content);
    const { size, mode, uid, gid } = opened.stats;
    const owner = { mode: Number(mode), uid: Number(uid), gid: Number(gid) };
    return { file, before: { sha256, output, size: Number(size), ...owner } };
  }

  async function restoreOne({ file, before }: BeforeImage): Promise<"same" | "restored"> {
    using now = openChanged(file);
    const present = now && (await readWhole(now)).sha256;
    const written = writes.filter((write) => write.file === file);
    // A former run of a batch that is resumed may have restored it.
    if (present === before?.sha256) return durable.isResumed && written.length > 0 ? "restored" : "same";
    if (!written.some(({ sha256 }) => sha256 === (present ?? null)))
      throw new ToolFailure("it does not hold what the batch wrote");
    if (before) {
      const like = { mode: BigInt(before.mode), uid: BigInt(before.uid), gid: BigInt(before.gid) };
      await changes.replace({ absolute: file }, now?.stats, await contentOf(before), { like });
      await reads.record(file, before.sha256);
    } else if (now) await (await setAside({ absolute: file }, now.stats)).remove();
    return "restored";
  }

  async function contentOf({ output, size }: { output: string; size: number }): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for (let at = 0; at < size; ) {
      const piece = await outputs.read(output, at, 1024 * 1024);
      if (piece === undefined || piece.data.length === 0) throw new ToolFailure("its content before the batch is lost");
      // The store may use the memory of a piece again.
      chunks.push(Uint8Array.from(piece.data));
      at += piece.data.length;
    }
    return Buffer.concat(chunks);
  }

  return {
    get hasStarted() {
      return hasStarted;
    },
    async beforeStart(files) {
      checkSize(files);
      await dropImages();
      [images, writes] = [[], []];
      for (const file of files) images.push(await take(file).catch((cause: unknown) => cannotStore(file, cause)));
      // Stored also without files: from now on the calls may start.
      await durable.store({ images, writes }).catch(cannotStoreImages);
      hasStarted = true;
    },
    async beforeWrite(added) {
      const isKnown = ({ path, sha256 }: FileWrite) =>
        writes.some((write) => write.file === path && write.sha256 === (sha256 ?? null));
      const unknown = added.filter((write) => !isKnown(write));
      writes = [...writes, ...unknown.map(({ path: file, sha256 = null }) => ({ file, sha256 }))];
      if (unknown.length > 0) storing = storing.catch(() => {}).then(() => durable.store({ images, writes }));
      await storing;
    },
    async restore() {
      const outcome: Restored = { restored: [], left: [] };
      for (const image of images) {
        const { file } = image;
        try {
          const result = await changes.inTurns([file], () => restoreOne(image));
          if (result === "restored") outcome.restored.push(file);
        } catch (error) {
          outcome.left.push({ file, why: error instanceof Error ? error.message : String(error) });
        }
      }
      return outcome;
    },
    drop: dropImages,
  };

  async function dropImages(): Promise<void> {
    // Another run of the batch may still need them.
    if (await durable.isLeft()) return;
    for (const { before } of images) if (before) await outputs.remove(before.output);
  }
}

/** Returns the files that a batch may have changed and that nobody has restored, for the error of one that is lost. */
export function unrestoredNote({ memo }: Pick<StartedCall, "memo">): string {
  const { writes = [] } = storedImages.safeParse(memo).data ?? {};
  const files = [...new Set(writes.map(({ file }) => file))];
  return files.length === 0 ? "" : `It is atomic, but no file was restored: check ${files.join(", ")}.`;
}

/** Refuses a batch whose files are too large to be stored. */
function checkSize(files: readonly string[]): void {
  const sizes = files.map((file) => {
    using opened = openChanged(file);
    return Number(opened?.stats.size ?? 0);
  });
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  if (bytes <= maxImageBytes) return;
  throw new ToolFailure(
    `The files that this atomic batch changes have ${bytes} bytes; at most ${maxImageBytes} can be restored if a call fails. Nothing was run: leave out atomic, or make smaller batches.`,
  );
}

function cannotStore(file: string, cause: unknown): never {
  if (cause instanceof ToolFailure || cause instanceof ChangedAfterApproval) throw cause;
  throw new ToolFailure(
    `${file} could not be stored before the batch, so nothing was run: ${String(cause)}. Try again.`,
    {
      cause,
    },
  );
}

function cannotStoreImages(cause: unknown): never {
  if (!(cause instanceof RequestError)) throw cause;
  throw new ToolFailure(
    `The files could not be stored before the batch, so nothing was run: ${cause.message}. Try again.`,
    {
      cause,
    },
  );
}

async function readWhole(file: OpenFile): Promise<{ sha256: string; content: Uint8Array }> {
  const chunks: Uint8Array[] = [];
  const sha256 = await readThrough(bytesOf(file), (chunk) => chunks.push(chunk));
  return { sha256, content: Buffer.concat(chunks) };
}

/** Opens a file of the batch; undefined if there is none. Refuses directories, and files with other names. */
function openChanged(absolute: string): OpenFile | undefined {
  const file = openFile({ absolute, otherNames: false });
  if (!file?.stats.isDirectory()) return file;
  file[Symbol.dispose]();
  throw new ToolFailure(`${absolute} is a directory, not a file. Name a file.`);
}
