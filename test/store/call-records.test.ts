import { expect, test } from "vitest";
import { createHeldCalls } from "../../src/store/redis/call-records.ts";
import { callRef } from "./fixture.ts";

const ref = callRef();

test("an answer about an earlier lease, which comes late, leaves a later lease of the same call", () => {
  const held = createHeldCalls();
  held.add("replica", ref);
  const earlier = held.get("replica", ref);
  const renewed = held.portions("replica").flat();
  held.add("replica", ref);
  for (const lease of [earlier, ...renewed]) held.drop("replica", lease);
  expect(held.portions("replica").flat()).toEqual([{ ref }]);
  held.drop("replica", held.get("replica", ref));
  expect(held.portions("replica")).toEqual([]);
});
