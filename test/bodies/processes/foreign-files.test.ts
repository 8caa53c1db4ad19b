import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { installBun } from "./bun-program.ts";
import { node, outputOf, type StartedProcess, startProcess } from "./driver.ts";
import { type ForeignFile, foreignFiles, neededPackage, projectFiles } from "./foreign-files.ts";

/** A program of the project, which the tools ask. It returns what it gets. */
const program = createServer(async (request, response) => {
  const body = await text(request);
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify({ path: request.url, ...(body !== "" && { body: JSON.parse(body) }) }));
});
let files: readonly ForeignFile[] = [];
const runtimes = { node, bun: installBun() };
const ran = new Map<string, number>();

beforeAll(async () => {
  await new Promise<void>((resolve) => program.listen(0, "127.0.0.1", resolve));
  files = foreignFiles(`http://127.0.0.1:${(program.address() as AddressInfo).port}`);
});
afterAll(() => program.close());

/** Starts a process with all files. */
async function startAll(runtime: "node" | "bun", more: Readonly<Record<string, string>>): Promise<StartedProcess> {
  return await startProcess({
    runtime: runtimes[runtime],
    files: { ...projectFiles, ...more, ...Object.fromEntries(files.map(({ path, source }) => [path, source])) },
    load: files.map(({ path }) => path),
  });
}

describe.each(["node", "bun"] as const)("under %s", (runtime) => {
  test("each of 42 tool files loads, and a call of it returns what it should, or names what is missing", async () => {
    await using started = await startAll(runtime, neededPackage);
    const problems = new Map(started.hello.problems.map(({ file, reason }) => [file, reason]));
    for (const { kind, path, tool, input, output, node: refused } of files) {
      const problem = problems.get(join(started.directory, path)) ?? "";
      if (runtime === "node" && refused) {
        const message = refused.refusedAt === "load" ? problem : await failureOf(started, tool, input);
        expect(message, path).toContain(refused.reason);
        continue;
      }
      expect(problem, path).toBe("");
      const ended = await started.call(tool, input);
      expect(outputOf(ended), path).toBe(output);
      ran.set(`${kind} ${runtime}`, (ran.get(`${kind} ${runtime}`) ?? 0) + 1);
    }
    expect(files).toHaveLength(42);
  });

  test("a package that is not installed is named with the line that installs it, and hinders no other file", async () => {
    await using started = await startAll(runtime, {});
    const reason = `it needs the package @acme/names: npm install --prefix ${started.directory}/.opencode @acme/names`;
    const path = join(started.directory, ".opencode/tool/agent-names.ts");
    expect(started.hello.problems).toContainEqual(expect.objectContaining({ file: path, reason }));
    expect(started.hello.problems.filter(({ reason }) => !reason.includes("needs"))).toEqual([]);
  });
});

async function failureOf(started: StartedProcess, tool: string, input: ForeignFile["input"]): Promise<string> {
  const { result } = await started.call(tool, input);
  return result.case === "failed" ? result.value.message : "";
}

test("under Node 35 of them run, under Bun all; of the other seven Node says what they need", async () => {
  const kinds = Map.groupBy(files, ({ kind }) => kind);
  const count = (kind: string, runtime: string) => ran.get(`${kind} ${runtime}`) ?? 0;
  const rows = [...kinds].map(([kind, all]) => [kind, all.length, count(kind, "node"), count(kind, "bun")]);
  const sum = (column: number) => rows.reduce((total, row) => total + Number(row[column]), 0);
  const table = [...rows, ["all", sum(1), sum(2), sum(3)]].map((row) => `| ${row.join(" | ")} |`).join("\n");
  console.log(table);
  expect(table).toContain("| all | 42 | 35 | 42 |");
  const page = await readFile(join(import.meta.dirname, "../../../docs/tools.md"), "utf8");
  expect(page).toMatch(/Of 42 files .* 35 run under Node and all under Bun/);
});
