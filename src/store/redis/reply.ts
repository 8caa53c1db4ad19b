/** What Redis answers. */
export type Reply = Buffer | number | null | Reply[];

/** The text of an answer; empty for none. */
export function text(reply: Reply | undefined): string {
  if (Buffer.isBuffer(reply)) return reply.toString();
  return reply === null || reply === undefined ? "" : String(reply);
}

/** The bytes of an answer; undefined for none. */
export function bytes(reply: Reply | undefined): Buffer | undefined {
  return Buffer.isBuffer(reply) ? reply : undefined;
}

/** The number in an answer. */
export const number = (reply: Reply | undefined): number => Number(text(reply));

/** The parts of an answer; none if it has none. */
export const replyList = (reply: Reply | undefined): Reply[] => (Array.isArray(reply) ? reply : []);

/** The texts of an answer's parts. */
export const texts = (reply: Reply | undefined): string[] => replyList(reply).map(text);

/** Names and values that alternate, as pairs. */
export function pairs(reply: Reply | undefined): [string, Buffer][] {
  const all = replyList(reply);
  return all.flatMap((name, index): [string, Buffer][] => {
    const value = all[index + 1];
    return index % 2 === 0 && Buffer.isBuffer(value) ? [[text(name), value]] : [];
  });
}

/** The parts of an answer that belong together by three. */
export function inThrees(parts: readonly Reply[]): Reply[][] {
  return Array.from({ length: parts.length / 3 }, (_, index) => parts.slice(index * 3, index * 3 + 3));
}

/** A hash as it was read; undefined if it has no field. */
export interface Fields {
  text(name: string): string;
  number(name: string): number;
  bytes(name: string): Buffer;
  has(name: string): boolean;
}

/** The fields of a hash, from names and values that alternate. */
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
