import type { OutputStore } from "../../call/ports.ts";
import { setNewest } from "../../core/bounded-map.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { bytes, number } from "./reply.ts";

/** Stores each output in chunks in its tree's slot. */
export function createRedisOutputs({ link, keys }: { link: Link; keys: Keys }): OutputStore {
  // The last pending append of each output; appends to one output are sequential.
  const writing = new Map<string, Promise<void>>();
  // Lengths of outputs, in order of use; only the executor of its call writes to an output.
  const written = new Map<string, number>();
  link.onLost(() => written.clear());

  const remember = (key: string, length: number) => setNewest(written, key, length, maxOutputs);

  async function lengthOf(root: string, id: string): Promise<number | undefined> {
    const length = await link.command("hget", keys.tree(root).lengths, id);
    return length === null ? undefined : number(length);
  }

  /** Writes at an offset, so that a repeated command has the same effect. */
  async function write(root: string, id: string, data: Uint8Array): Promise<void> {
    const key = `${root}/${id}`;
    let length = written.get(key) ?? (await lengthOf(root, id)) ?? 0;
    // After a failure the written length is unknown.
    written.delete(key);
    for (let at = 0; at < data.byteLength; ) {
      const piece = data.subarray(at, at + maxStepBytes);
      const { pieces, first } = split(piece, length);
      const tree = keys.tree(root);
      const chunks = pieces.map((_, index) => [`chunk ${index + 1}`, tree.chunk(id, first + index)]);
      const end = await link.run(
        "append_output",
        { lengths: tree.lengths, outputs: tree.outputs, ...Object.fromEntries(chunks) },
        { id, start: length, offset: length % chunkBytes, length: length + piece.byteLength, count: pieces.length },
        Object.fromEntries(pieces.map((each, index) => [`piece ${index + 1}`, each])),
      );
      if (number(end) < 0) throw outputCut(id);
      at += piece.byteLength;
      length += piece.byteLength;
    }
    remember(key, length);
  }

  return {
    append(root, id, data) {
      if (!isName(root) || !isName(id)) {
        return Promise.reject(new Error(`an output cannot be named ${root}/${id}: both parts must match ${name}`));
      }
      const key = `${root}/${id}`;
      const copy = Uint8Array.from(data);
      const done = (writing.get(key) ?? Promise.resolve()).catch(() => {}).then(() => write(root, id, copy));
      writing.set(key, done);
      return done.finally(() => {
        if (writing.get(key) === done) writing.delete(key);
      });
    },

    async read(root, id, offset, limit) {
      if (!isName(root) || !isName(id)) return undefined;
      const total = await lengthOf(root, id);
      if (total === undefined) return undefined;
      const end = Math.min(total, offset + limit);
      if (end <= offset) return { data: new Uint8Array(), total };
      const first = Math.floor(offset / chunkBytes);
      const last = Math.floor((end - 1) / chunkBytes);
      const chunks = Array.from({ length: last - first + 1 }, async (_, index) => {
        const start = (first + index) * chunkBytes;
        const range = [Math.max(0, offset - start), Math.min(chunkBytes, end - start) - 1] as const;
        return (
          bytes(await link.command("getrange", keys.tree(root).chunk(id, first + index), ...range)) ?? Buffer.alloc(0)
        );
      });
      return { data: Buffer.concat(await Promise.all(chunks)), total };
    },

    async remove(root, id) {
      written.delete(`${root}/${id}`);
      const { lengths, outputs, chunk } = keys.tree(root);
      const total = (await lengthOf(root, id)) ?? 0;
      const chunks = Array.from({ length: chunkCount(total) }, (_, index) => chunk(id, index));
      if (chunks.length > 0) await link.command("unlink", ...chunks);
      await link.command("hdel", lengths, id);
      await link.command("zrem", outputs, id);
    },
  };
}

/** Refuses bytes behind others that are gone: there would be a gap, or events would name the wrong bytes. */
const outputCut = (id: string) =>
  new Error(
    `output ${id} is cut off: Redis has lost its last writes; check the effects of the call, then run it again`,
  );

const maxOutputs = 1_000;
const chunkBytes = 64 * 1024;

/** Returns the number of chunks of an output of that length. */
export const chunkCount = (length: number): number => Math.ceil(length / chunkBytes);

/** Maximum size of one step. */
const maxStepBytes = 8 * chunkBytes;
const name = /^[A-Za-z0-9_-]{1,128}$/;
const isName = (text: string) => name.test(text);

/** Splits data to write at an offset into pieces that each fit in one chunk. */
function split(data: Uint8Array, at: number): { pieces: Uint8Array[]; first: number } {
  const pieces = [];
  for (let from = 0; from < data.byteLength; ) {
    const capacity = chunkBytes - ((at + from) % chunkBytes);
    pieces.push(data.subarray(from, from + capacity));
    from += capacity;
  }
  return { pieces, first: Math.floor(at / chunkBytes) };
}
