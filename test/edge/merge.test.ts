import fc from "fast-check";
import { expect, test } from "vitest";
import { merge } from "../../src/edge/api/streams.ts";

/** Yields items, each after the given number of turns of the event loop. */
async function* paced(name: string, turns: readonly number[]) {
  for (const [i, wait] of turns.entries()) {
    for (let turn = 0; turn < wait; turn += 1) await new Promise(setImmediate);
    yield `${name}${i}`;
  }
}

test("all items of each source arrive in order, whatever the paces of the sources", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.array(fc.nat(3), { maxLength: 6 }), { maxLength: 5 }), async (paces) => {
      const all = await Array.fromAsync(merge(paces.map((turns, at) => paced(`${at}:`, turns))));
      for (const [at, turns] of paces.entries()) {
        const own = all.filter((item) => item.startsWith(`${at}:`));
        expect(own).toEqual(turns.map((_, i) => `${at}:${i}`));
      }
      expect(all).toHaveLength(paces.flat().length);
    }),
    { numRuns: 50 },
  );
});

test("a source that always has items does not delay others", async () => {
  async function* endless() {
    for (;;) yield "busy";
  }
  const taken: string[] = [];
  for await (const item of merge([endless(), endless(), paced("quiet", [0, 0, 0])])) {
    if (taken.push(item) === 12) break;
  }
  expect(taken.filter((item) => item.startsWith("quiet"))).toEqual(["quiet0", "quiet1", "quiet2"]);
});

test("a source is at most one item ahead of the reader", async () => {
  let made = 0;
  async function* counted() {
    for (;;) yield ++made;
  }
  const merged = merge([counted()]);
  for (let taken = 1; taken <= 5; taken += 1) {
    await merged.next();
    await new Promise(setImmediate);
    expect(made).toBe(taken);
  }
});

test("the first failure ends the merged stream", async () => {
  async function* failing() {
    yield "before";
    throw new Error("broken");
  }
  const taken: string[] = [];
  const take = async () => {
    for await (const item of merge([failing(), paced("slow", [5, 1_000_000])])) taken.push(item);
  };
  await expect(take()).rejects.toThrow("broken");
  expect(taken[0]).toBe("before");
});
