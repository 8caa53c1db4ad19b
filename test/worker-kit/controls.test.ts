import { join } from "node:path";
import { expect, test } from "vitest";
import type { KitWire } from "./kit-wire.ts";
import { allCases, runCase, withServices } from "./run-cases.ts";
import { mistakes } from "./workers/mistakes.ts";

test("the kit finds each mistake of a broken worker, in the case that is about it", async () => {
  const cases = allCases.filter(({ name }) => Object.values<string>(mistakes).includes(name));
  const found = await withServices(cases, (services) => {
    const failures = Object.entries(mistakes).map(async ([mistake, name]) => {
      const program = join(import.meta.dirname, "workers/broken.ts");
      const command = { words: [process.execPath, program, mistake], directory: import.meta.dirname };
      const each = cases.find((known) => known.name === name);
      if (!each) throw new Error(`there is no case ${name}`);
      const failure = await runCase({ ...services, command, timeoutMs: 30_000 }, each);
      return [mistake, `${failure?.expected}; ${failure?.seen}`] as const;
    });
    return Promise.all(failures);
  });
  expect(Object.fromEntries(found)).toEqual({
    "reads the old connection": expect.stringContaining("the ledger"),
    "enters an assignment twice": expect.stringContaining("the ledger"),
    "drops results before their receipt": expect.stringContaining("hello.held"),
    "sends nothing again after a cut": expect.stringMatching(/lost output|to complete|kit_write to end/),
    "ignores cancel": expect.stringContaining("STOPPED within grace_ms"),
    "denies a body that it entered": expect.stringContaining("known.entered of a body that runs"),
    "leaves before it may": expect.stringContaining("to wait for `leave`; the worker ended (0)"),
    "never beats": expect.stringContaining("a beat each beat_ms"),
    "sends an open request once": expect.stringContaining("the open request on the next connection"),
    "goes on after `ended`": expect.stringContaining('"stopped over"'),
    "leaves without `ended`": expect.stringContaining("to wait for `ended`; the worker ended (0)"),
  });
});

test("a worker whose first connection was lost before its welcome passes each case about connections", async () => {
  const cases = allCases.filter(({ name }) => byConnection.includes(name));
  expect(cases.map(({ name }) => name).toSorted()).toEqual(byConnection.toSorted());
  const words = [process.execPath, join(import.meta.dirname, "workers/typescript.ts")];
  const found = await withServices(cases, async (services) => {
    const failures: [string, unknown][] = [];
    for (const each of cases) {
      let lost = 0;
      const disturb = ({ rules }: KitWire) => {
        const { changeHello } = rules;
        rules.changeHello = (hello) => {
          changeHello(hello);
          lost += 1;
          if (lost === 1) throw new Error("the first connection is lost");
        };
      };
      const command = { words, directory: import.meta.dirname };
      failures.push([each.name, await runCase({ ...services, command, timeoutMs: 30_000, disturb }, each)]);
      expect(lost, each.name).toBeGreaterThan(1);
    }
    return failures;
  });
  expect(Object.fromEntries(found)).toEqual(Object.fromEntries(byConnection.map((name) => [name, undefined])));
});

const byConnection = [
  "capacity 0",
  "result cut",
  "ask across a cut",
  "two connections",
  "replica change",
  "store changed",
  "silence and self-stop",
  "start on an old connection",
  "probe",
  "stale assignment",
];
