import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ToolFailure } from "../../src/tool/errors.ts";
import { everySearch, ripgrep } from "../../src/tools/fs/ripgrep.ts";

let folder = "";
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-rg-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const { signal } = new AbortController();
const { signal: late } = new AbortController();
const lines = (...args: string[]) =>
  ({ args: [...everySearch, ...args], cwd: folder, delimiter: "\n", signal, late }) as const;

test("a search that prints more than 10 MiB is stopped with that reason", async () => {
  await writeFile(join(folder, "a.txt"), "a line of some length\n".repeat(600_000));
  let bytes = 0;
  const stopped = await ripgrep(lines("--regexp=line", "./"), (record) => {
    bytes += record.length + 1;
  });
  expect(stopped).toBe("it found more than 10 MiB");
  expect(bytes).toBeLessThan(11 * 1024 * 1024);
});

test("a search over its time limit is stopped, and earlier results count", async () => {
  async function* endless() {
    // More than ripgrep gathers before it searches.
    yield Buffer.from("x\n".repeat(200_000));
    await new Promise(() => undefined);
  }
  const over = new AbortController();
  const records: string[] = [];
  const search = { ...lines("--line-buffered", "--regexp=x", "-"), input: endless(), late: over.signal };
  const stopped = await ripgrep(search, (record) => {
    records.push(record);
    over.abort();
  });
  expect(stopped).toBe("it took longer than 60 s");
  expect(new Set(records)).toEqual(new Set(["x"]));
});

test("a search after the time limit of its call finds nothing", async () => {
  await writeFile(join(folder, "a.txt"), "x\n");
  const records: string[] = [];
  const search = { ...lines("--regexp=x", "./"), late: AbortSignal.abort() };
  expect(await ripgrep(search, (record) => records.push(record))).toBe("it took longer than 60 s");
  expect(records).toEqual([]);
});

test("records arrive whole, even with characters of several bytes", async () => {
  await writeFile(join(folder, "a.txt"), "é🙂".repeat(300).concat("\n").repeat(500));
  const records = new Set<string>();
  expect(await ripgrep(lines("--no-filename", "--regexp=é", "./"), (record) => records.add(record))).toBeUndefined();
  expect([...records]).toEqual(["é🙂".repeat(300)]);
});

test("settings of the user that runs the service are ignored", async () => {
  await writeFile(join(folder, "a.txt"), "x\n");
  await writeFile(join(folder, "config"), "--invert-match\n");
  process.env.RIPGREP_CONFIG_PATH = join(folder, "config");
  const records: string[] = [];
  try {
    await ripgrep(lines("--no-filename", "--regexp=x", "a.txt"), (record) => records.push(record));
  } finally {
    delete process.env.RIPGREP_CONFIG_PATH;
  }
  expect(records).toEqual(["x"]);
});

test("an input that fails fails the search", async () => {
  async function* broken() {
    yield Buffer.from("x\n");
    throw new ToolFailure("the store is away");
  }
  const search = { ...lines("--regexp=x", "-"), input: broken() };
  await expect(ripgrep(search, () => undefined)).rejects.toThrow("the store is away");
});
