import { mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Client, Progress } from "@modelcontextprotocol/client";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { createService } from "../e2e/service.ts";
import { offersIn, upstreamClients, upstreamOffer } from "../e2e/upstream-clients.ts";
import { eras, textOf, transports } from "./clients.ts";

const { folder, offer, table } = offersIn("progress");
const service = createService({
  settings: `${table("steps", 'tools = ["*"]')}\n[permission]\n"*" = "allow"\n`,
});
const { accept, namesOf } = upstreamClients(service);

/** Shows one title, waits for the file that its input names, then shows two more in one turn, and returns. */
const report = `
import { existsSync } from "node:fs";
export default {
  description: "Reports what it does",
  args: { until: { type: "string", description: "File to wait for" } },
  async execute({ until }, ctx) {
    ctx.metadata({ title: "first" });
    while (until && !existsSync(until)) await new Promise((resolve) => setTimeout(resolve, 20));
    ctx.metadata({ title: "second" });
    ctx.metadata({ title: "third", progress: 7, total: 8 });
    return "done";
  },
};
`;

beforeAll(async () => {
  await mkdir(folder, { recursive: true });
  await offer("steps", [upstreamOffer("reports")]);
  await service.start();
  await mkdir(join(dirname(service.config), "tool"), { recursive: true });
  await writeFile(join(dirname(service.config), "tool/report.ts"), report);
  await accept("steps");
  await vi.waitFor(async () => expect(await namesOf("steps")).toContain("steps_reports"), { timeout: 60_000 });
});
afterAll(async () => {
  await service.close();
  await rm(folder, { recursive: true });
});

const names = Object.keys(transports) as (keyof typeof transports)[];

describe.each(eras.flatMap((era) => names.map((name) => ({ era, name }))))("$era over $name", ({ era, name }) => {
  let client: Client;
  const errors: Error[] = [];
  beforeAll(async () => {
    client = await transports[name](service, { era });
    // Progress after the result is an error of the client.
    client.onerror = (error) => errors.push(error);
  });
  afterAll(async () => {
    expect(errors).toEqual([]);
    await client.close();
  });

  async function progressOf(tool: string, input: Record<string, unknown>, onprogress?: (progress: Progress) => void) {
    const reports: Progress[] = [];
    const result = await client.callTool(
      { name: tool, arguments: input },
      {
        onprogress(progress) {
          reports.push(progress);
          onprogress?.(progress);
        },
      },
    );
    expect(textOf(result)).toBe("done");
    const numbers = reports.map(({ progress }) => progress);
    expect(numbers).toEqual([...new Set(numbers)].toSorted((one, other) => one - other));
    return reports.filter(({ message = "" }) => /^(at |running: (first|second|third))/.test(message));
  }

  test("a report arrives while the tool runs, and the last one before the result", async () => {
    const until = join(service.workspace, `go-${era}-${name}`);
    const reports = await progressOf("report", { until }, ({ message }) => {
      if (message === "running: first") void writeFile(until, "");
    });
    expect(reports[0]).toMatchObject({ message: "running: first" });
    // One that repeats the last message, each 10 s, has no number of the tool.
    const numbered = reports.findLast(({ total }) => total !== undefined);
    expect(numbered).toMatchObject({ message: "running: third", progress: 7, total: 8 });
  });

  test("the last report of a tool that returns at once arrives", async () => {
    const reports = await progressOf("report", { until: "" });
    // One that repeats the last message, each 10 s, has no number of the tool.
    const numbered = reports.findLast(({ total }) => total !== undefined);
    expect(numbered).toMatchObject({ message: "running: third", progress: 7, total: 8 });
  });

  test("the numbers and messages of an MCP server behind the service arrive as it sent them", async () => {
    const reports = await progressOf("steps_reports", { values: [0.5, 2, 3, 9] });
    expect(reports[0]).toEqual({ message: "at 0.5", progress: 0.5, total: 9 });
    expect(reports.at(-1)).toEqual({ message: "at 9", progress: 9, total: 9 });
    // Numbers that fall are raised.
    expect((await progressOf("steps_reports", { values: [4, 3] })).at(-1)).toMatchObject({ message: "at 3" });
  });
});
