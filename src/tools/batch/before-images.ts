import type { BigIntStats } from "node:fs";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import { bytesOf, type OpenFile, openFile, readThrough } from "../../tool/open-file.ts";
import type { ChangeObserver, ToolContext } from "../../tool/tool.ts";
import type { FileChanges } from "../fs/change-file.ts";
import { replaceFile, setAside } from "../fs/replace-file.ts";

const maxImageBytes = 64 * 1024 * 1024;

/** Outcome of restoring the files of a batch. */
export interface Restored {
  /** Files that are as before the batch again. */
  restored: string[];
  /** Files that were left as they are, with the reason. */
  left: { file: string; why: string }[];
}

/** State of a file before the batch. */
interface BeforeImage {
  /** Undefined if there was no file. */
  before?: { stats: BigIntStats; sha256: string; output: string };
}

/**
 * The files that an atomic batch changes: stores them before the batch starts, observes what its calls write, and can restore
 * them.
 */
export interface BeforeImages extends ChangeObserver {
  /** True once the images are stored and the calls may have started. */
  readonly hasStarted: boolean;
  /** Reports a file that a call removed. */
  removed(file: string): void;
  /** Restores each file that still holds what the batch wrote. */
  restore(): Promise<Restored>;
  /** Removes the stored images. */
  drop(): Promise<void>;
}

/** Creates the before-images of one batch. */
export function createBeforeImages(
  { outputs, reads }: Pick<ToolContext, "outputs" | "reads">,
  changes: Pick<FileChanges, "inTurns">,
): BeforeImages {
  const images = new Map<string, BeforeImage>();
  /** SHA-256 of what the batch wrote last; undefined for a file that it removed. */
  const changed = new Map<string, string | undefined>();
  let hasStarted = false;

  async function take(file: string): Promise<void> {
    using opened = openChanged(file);
    if (opened === undefined) return void images.set(file, {});
    const { sha256, content } = await readWhole(opened);
    const output = await outputs.store(content);
    images.set(file, { before: { stats: opened.stats, sha256, output } });
  }

  async function restoreOne(file: string, { before }: BeforeImage): Promise<"same" | "restored"> {
    using now = openChanged(file);
    const present = now && (await readWhole(now)).sha256;
    if (present === before?.sha256) return "same";
    if (!changed.has(file) || changed.get(file) !== present) {
      throw new ToolFailure("it does not hold what the batch wrote");
    }
    if (before) {
      await replaceFile({ absolute: file }, now?.stats, await imageOf(before), { like: before.stats });
      await reads.record(file, before.sha256);
    } else if (now) await (await setAside({ absolute: file }, now.stats)).remove();
    return "restored";
  }

  async function imageOf({ output, stats }: { output: string; stats: BigIntStats }): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for (let at = 0; at < Number(stats.size); ) {
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
      for (const file of files) await take(file).catch((cause: unknown) => cannotStore(file, cause));
      hasStarted = true;
    },
    wrote: (file, sha256) => void changed.set(file, sha256),
    removed: (file) => void changed.set(file, undefined),
    async restore() {
      const outcome: Restored = { restored: [], left: [] };
      for (const [file, image] of images) {
        try {
          const result = await changes.inTurns([file], () => restoreOne(file, image));
          if (result === "restored") outcome.restored.push(file);
        } catch (error) {
          outcome.left.push({ file, why: error instanceof Error ? error.message : String(error) });
        }
      }
      return outcome;
    },
    async drop() {
      for (const { before } of images.values()) if (before) await outputs.remove(before.output);
    },
  };
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
