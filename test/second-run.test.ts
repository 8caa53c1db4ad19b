import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, expect, test } from "vitest";

const root = resolve(import.meta.dirname, "..");
const directory = join(root, ".cache", `second-run-${process.pid}`);
const list = join(directory, "second-runs");

beforeEach(() => {
  mkdirSync(directory, { recursive: true });
  writeFileSync(list, "");
  writeFileSync(
    join(directory, "vitest.config.ts"),
    `import FailedFiles from "${root}/test/failed-files.ts";
     export default { root: "${directory}", test: { include: ["*.test.ts"], reporters: ["default", new FailedFiles()] } };`,
  );
  const vitest = join(root, "node_modules/vitest/vitest.mjs");
  const scripts = { test: `exec node ${vitest} run --config ${directory}/vitest.config.ts` };
  writeFileSync(join(directory, "package.json"), JSON.stringify({ type: "module", scripts }));
});
afterEach(() => rmSync(directory, { recursive: true }));

/** Throws when it runs first. */
const firstTime = (name: string) => `
  if (!existsSync("${directory}/${name}")) { writeFileSync("${directory}/${name}", ""); throw new Error("lost a race\\nin ${name}"); }`;

function write(name: string, body: string): void {
  const imports = `import { existsSync, writeFileSync } from "node:fs"; import { beforeAll, test } from "vitest";`;
  writeFileSync(join(directory, `${name}.test.ts`), `${imports}\n${body}\n`);
}

/** Runs the tests as the gate does. */
async function gate() {
  const script = `set -euo pipefail; . .ci/second-run.sh; second_runs=$1; with_second_run npm test --prefix "$2"; echo passed`;
  const child = spawn("bash", ["-c", script, "gate", list, directory], {
    cwd: root,
    env: { PATH: process.env.PATH, HOME: process.env.HOME },
    stdio: ["ignore", "pipe", "ignore"],
  });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, "close")]);
  return { output, code, listed: readFileSync(list, "utf8") };
}

test("a file that fails in a test, a hook or its import, and then passes alone, is reported and passes", async () => {
  write("good", `test("works", () => {});`);
  write("a", `test("works", () => {${firstTime("a")}});`);
  write("b", `beforeAll(() => {${firstTime("b")}}); test("works", () => {});`);
  write("c", `${firstTime("c")}; test("works", () => {});`);
  const { output, code, listed } = await gate();
  expect(listed.split("\n").toSorted()).toEqual([
    "",
    "a.test.ts\tworks: lost a race in a",
    "b.test.ts\tlost a race in b",
    "c.test.ts\tlost a race in c",
  ]);
  expect({ code, last: output.trim().split("\n").at(-1) }).toEqual({ code: 0, last: "passed" });
  expect(output).toMatch(/SECOND RUN, alone: a\.test\.ts\n {3}first error: works: lost a race in a\n/);
  expect(output.match(/Test Files .*1 passed.*\(1\)/g)).toHaveLength(3);
});

test("a file that fails again fails the gate", async () => {
  write("good", `test("works", () => {});`);
  write("bad", `test("works", () => { throw new Error("no"); });`);
  const { output, code } = await gate();
  expect(code).toBe(1);
  expect(output.match(/SECOND RUN/g)).toHaveLength(1);
  expect(output.match(/Test Files .*1 failed/g)).toHaveLength(2);
});

test("more than five such files in all commands fail the gate without a second run", async () => {
  writeFileSync(list, "v\tearlier\nw\tearlier\nx\tearlier\ny\tearlier\nz\tearlier\n");
  write("a", `test("works", () => {${firstTime("a")}});`);
  const { output, code } = await gate();
  expect(code).toBe(1);
  expect(output).not.toContain("SECOND RUN");
});

test("an error outside all test files fails the gate", async () => {
  writeFileSync(join(directory, "package.json"), JSON.stringify({ scripts: { test: "exit 1" } }));
  expect(await gate()).toMatchObject({ code: 1, listed: "" });
});
