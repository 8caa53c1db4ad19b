import { expect, test } from "vitest";
import { continueHistories } from "../../src/store/redis/histories.ts";

const first = { id: "first", shards: [0, 1] };
const second = { id: "second", shards: [1, 2] };
const successor = { id: "successor", shards: [1, 2] };

test("a history stays known while no master serves all of its shards, and ends once another one does", () => {
  const all = continueHistories(new Map(), [first, second]);
  expect([...all.keys()]).toEqual(["first", "second"]);
  const missing = continueHistories(all, [first]);
  expect([...missing.keys()].toSorted()).toEqual(["first", "second"]);
  const after = continueHistories(missing, [first, successor]);
  expect([...after.keys()]).toEqual(["first", "successor"]);
});
