import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";
import type { SimulationSummary } from "../gen/opencode/tool/v1/permission_service_pb.ts";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { connectWith } from "../src/client/connect.ts";
import { openSqliteStore } from "../src/store/sqlite/store.ts";
import { cpuTime } from "./cpu-time.ts";
import { openSession } from "./echoes.ts";
import type { Processes } from "./processes.ts";
import { table, target } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Sizes: recorded decisions, and different command lines among them. */
export interface SimulatePlan {
  decisions: number;
  lines: number;
}

const corpus = z.array(z.object({ command: z.string() }));
const service = { name: "simulate", rules: 'bash = "deny"\n' };
const candidate = '[permission.bash]\n"*" = "deny"\n"git *" = "allow"\n"ls *" = "ask"\n';

/** Measures the simulation of a candidate on recorded decisions about command lines: those of files, or made ones. */
export async function measureSimulation(
  processes: Processes,
  plan: SimulatePlan,
  print: (text: string) => void,
  files: readonly string[],
): Promise<void> {
  const read: string[] = [];
  for (const file of files)
    read.push(...corpus.parse(JSON.parse(await readFile(file, "utf8"))).map((each) => each.command));
  const lines = read.length > 0 ? read : Array.from({ length: plan.lines }, (_, i) => madeLine(i));
  const first = await startToolgate(processes, service);
  const caller = first.connect("caller");
  const sessionId = await openSession(caller);
  // The rule in force denies them, so they are recorded and nothing runs.
  for (const [i, command] of lines.entries())
    await caller.connect(ToolService.method.callTool, {
      sessionId,
      callId: `line_${i}`,
      tool: "bash",
      input: { command },
    });
  await processes.kill(first.server.pid);
  await repeatRecords(join(processes.folder, service.name, "data"), sessionId, plan.decisions);

  const { server } = await startToolgate(processes, service);
  const { permissions, close } = connectWith({ url: server.url, token: "approver-1-token-for-tests" });
  const [began, before] = [performance.now(), cpuTime(server.pid)];
  const summary = await simulate(permissions);
  const [seconds, cpu] = [(performance.now() - began) / 1_000, (cpuTime(server.pid) - before) / 1_000_000];
  close();
  print(
    `A candidate on ${summary.decisions.toLocaleString("en")} recorded decisions about ${lines.length.toLocaleString("en")} different command lines${read.length > 0 ? " of the corpora" : ""}, on SQLite.`,
  );
  const counts = [summary.judged, summary.changed, summary.leftOut, summary.unfaithful].map(String);
  print(
    table(
      ["judged", "changed", "left out", "unfaithful", "time, s", "CPU of the service, s"],
      [[...counts, seconds.toFixed(1), cpu.toFixed(1)]],
    ),
  );
  print(target("100,000 decisions", seconds, 10, "s"));
}

const madeLine = (i: number) =>
  `${["git log -n", "make target", "cat src/file", "npm run step"][i % 4]}${i} && ls dir${i}`;

/** Appends the records of a session to its audit again and again, as if its calls had been made as often. */
async function repeatRecords(directory: string, root: string, decisions: number): Promise<void> {
  const store = await openSqliteStore({ directory });
  const entries = await store.permissions.listDecisions({ root, afterSeq: 0, limit: decisions });
  const records = entries.flatMap(({ record }) => record ?? []);
  for (let count = records.length; count < decisions; count += records.length) {
    const copies = records
      .slice(0, decisions - count)
      .map((record) => ({ ...record, callId: `${record.callId}_${count}` }));
    await store.permissions.recordDecisions(root, copies);
  }
  await store.calls.close();
}

async function simulate(permissions: ReturnType<typeof connectWith>["permissions"]): Promise<SimulationSummary> {
  for await (const { kind } of permissions.simulatePolicy({ candidateToml: candidate }, { timeoutMs: 120_000 }))
    if (kind.case === "summary") return kind.value;
  throw new Error("the simulation ended without a summary");
}
