import { expect, test } from "vitest";
import { createRepeatedFailure } from "../../src/core/repeated-failure.ts";

test("of a failure that repeats the first is reported, then one in ten seconds with the count", () => {
  const reports: [string, number][] = [];
  let time = 0;
  const outage = createRepeatedFailure<string>((failure, count) => reports.push([failure, count]), { now: () => time });
  for (; time <= 25_000; time += 100) outage.failed(`at ${time}`);
  expect(reports).toEqual([
    ["at 0", 1],
    ["at 10000", 100],
    ["at 20000", 100],
  ]);
});

test("after a success the next failure is reported at once", () => {
  const reports: string[] = [];
  const outage = createRepeatedFailure<string>((failure) => reports.push(failure), { now: () => 0 });
  expect(outage.succeeded()).toBe(false);
  outage.failed("first");
  outage.failed("second");
  expect(outage.succeeded()).toBe(true);
  outage.failed("third");
  expect(reports).toEqual(["first", "third"]);
});
