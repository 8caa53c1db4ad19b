/** A reply of Redis. */
export type Reply = Buffer | number | null | Reply[];

/** Returns the text of a reply; empty for none. */
export function text(reply: Reply | undefined): string {
  if (Buffer.isBuffer(reply)) return reply.toString();
  return reply === null || reply === undefined ? "" : String(reply);
}

/** Returns the bytes of a reply; undefined for none. */
export function bytes(reply: Reply | undefined): Buffer | undefined {
  return Buffer.isBuffer(reply) ? reply : undefined;
}

/** Returns the number in a reply. */
export const number = (reply: Reply | undefined): number => Number(text(reply));

/** Returns the elements of a reply; none if it is not a list. */
export const replyList = (reply: Reply | undefined): Reply[] => (Array.isArray(reply) ? reply : []);

/** Returns the texts of a reply's elements. */
export const texts = (reply: Reply | undefined): string[] => replyList(reply).map(text);

/** Pairs names with values, which alternate. */
export function pairs(reply: Reply | undefined): [string, Buffer][] {
  const all = replyList(reply);
  return all.flatMap((name, index): [string, Buffer][] => {
    const value = all[index + 1];
    return index % 2 === 0 && Buffer.isBuffer(value) ? [[text(name), value]] : [];
  });
}

/** Groups elements in portions of a size; the last one may be smaller. */
export function inPortions<T>(all: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(all.length / size) }, (_, index) =>
    all.slice(index * size, (index + 1) * size),
  );
}

/** The fields of a hash. */
export interface Fields {
  text(name: string): string;
  number(name: string): number;
  bytes(name: string): Buffer;
  has(name: string): boolean;
}

/** Reads a hash from its alternating names and values; undefined if it has no field. */
export function fields(reply: Reply | undefined): Fields | undefined {
  const found = new Map(pairs(reply));
  if (found.size === 0) return undefined;
  return {
    text: (name) => text(found.get(name)),
    number: (name) => number(found.get(name)),
    bytes: (name) => found.get(name) ?? Buffer.alloc(0),
    has: (name) => found.has(name),
  };
}
