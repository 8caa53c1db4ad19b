import { expect, test } from "vitest";
import type { OpenStore } from "../fixture.ts";

const bytes = (text: string) => new TextEncoder().encode(text);
const text = (read: { data: Uint8Array } | undefined) => new TextDecoder().decode(read?.data);

/** Contract of `OutputStore`. */
export function outputContract(open: OpenStore): void {
  test("reads a range of an output, with its whole length", async () => {
    const { outputs } = await open();
    await outputs.append("ses_root", "out_1", bytes("hello "));
    await outputs.append("ses_root", "out_1", bytes("world"));
    const read = await outputs.read("ses_root", "out_1", 4, 4);
    expect(text(read)).toBe("o wo");
    expect(read?.total).toBe(11);
    expect(text(await outputs.read("ses_root", "out_1", 6, 1_000))).toBe("world");
    expect(await outputs.read("ses_root", "out_1", 11, 10)).toMatchObject({ total: 11 });
    expect(text(await outputs.read("ses_root", "out_1", 20, 10))).toBe("");
  });

  test("returns nothing for an unknown output or an invalid name", async () => {
    const { outputs } = await open();
    await outputs.append("ses_root", "out_1", bytes("secret"));
    expect(await outputs.read("ses_root", "out_2", 0, 10)).toBeUndefined();
    expect(await outputs.read("ses_other", "out_1", 0, 10)).toBeUndefined();
    expect(await outputs.read("ses_other", "../ses_root/out_1", 0, 10)).toBeUndefined();
    expect(await outputs.read("..", "out_1", 0, 10)).toBeUndefined();
    await expect(outputs.append("ses_root", "../out_1", bytes("x"))).rejects.toThrow("cannot be named");
    expect(text(await outputs.read("ses_root", "out_1", 0, 10))).toBe("secret");
  });

  test("writes concurrent appends in the order of their calls", async () => {
    const { outputs } = await open();
    const pieces = Array.from({ length: 200 }, (_, index) => `${index};`);
    await Promise.all(pieces.map((piece) => outputs.append("ses_root", "out_1", bytes(piece))));
    expect(text(await outputs.read("ses_root", "out_1", 0, 10_000))).toBe(pieces.join(""));
  });

  test("writes and reads many outputs concurrently", async () => {
    const { outputs } = await open();
    const ids = Array.from({ length: 200 }, (_, index) => `out_${index}`);
    const write = (piece: string) => Promise.all(ids.map((id) => outputs.append("ses_root", id, bytes(piece + id))));
    await Promise.all([write("a "), write(" b ")]);
    const reads = await Promise.all(ids.map((id) => outputs.read("ses_root", id, 0, 1_000)));
    expect(reads.map(text)).toEqual(ids.map((id) => `a ${id} b ${id}`));
  });

  test("continues an output when the store is opened again", async () => {
    const store = await open();
    await store.outputs.append("ses_root", "out_1", bytes("one "));
    const { outputs } = await store.reopen();
    await outputs.append("ses_root", "out_1", bytes("two"));
    expect(text(await outputs.read("ses_root", "out_1", 0, 100))).toBe("one two");
  });

  test("removes an output, any number of times", async () => {
    const { outputs } = await open();
    await outputs.append("ses_root", "out_1", bytes("one"));
    await outputs.remove("ses_root", "out_1");
    await outputs.remove("ses_root", "out_1");
    expect(await outputs.read("ses_root", "out_1", 0, 10)).toBeUndefined();
    await outputs.append("ses_root", "out_1", bytes("new"));
    expect(text(await outputs.read("ses_root", "out_1", 0, 10))).toBe("new");
  });
}
