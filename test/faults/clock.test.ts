import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { ledger } from "../e2e/ledger.ts";
import { read } from "../e2e/reading.ts";
import { startService } from "../e2e/service.ts";
import { fakeTime } from "./fake-time.ts";
import { createHosts } from "./hosts.ts";
import { endsOf, work } from "./load.ts";
import { isLong } from "./report.ts";
import { longLeaseMs, startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

const rounds = isLong ? 10 : 1;

test("F9 replicas whose clocks are years apart, or jump, serve as one", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-clock-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const clocks = [join(folder, "a"), join(folder, "b")] as const;
  const set = (clock: string, offset: string) => writeFile(clock, `${offset}\n`);
  await set(clocks[0], "+10y");
  await set(clocks[1], "-10y");
  const env = clocks.map((FAKETIME_TIMESTAMP_FILE) => ({ ...fakeTime(), FAKETIME_TIMESTAMP_FILE }));
  const system = await startSystem({ leaseMs: longLeaseMs, env });
  const hosts = createHosts(system);
  const stop = new AbortController();
  const working = work(hosts, 6, stop.signal);
  const jumps = ["+10y", "+1h", "-1h", "+0", "-10y"];
  for (const offset of Array.from({ length: rounds }, () => jumps).flat()) {
    await set(clocks[0], offset);
    await set(
      clocks[1],
      offset.replace(/^[+-]/, (sign) => (sign === "+" ? "-" : "+")),
    );
    await delay(1_000);
  }
  stop.abort();
  const parts = await working;
  expect(endsOf(parts)).toBe(`${parts.length} completed`);
  const fault = "F9 clocks of two of three replicas jump";
  await conclude(system, hosts, { fault, faults: rounds * jumps.length * 2, seen: endsOf(parts) });
});

test("F1b a start with a clock that is 40 days ahead removes nothing, runs nothing twice and expires nothing", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-clock-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const clock = join(folder, "clock");
  const set = (offset: string) => writeFile(clock, `${offset}\n`);
  await set("+0");
  const service = await startService({ env: { ...fakeTime(), FAKETIME_TIMESTAMP_FILE: clock } });
  const runs = ledger(service);
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const pay = { sessionId, callId: "pay", agent: "free", tool: "bash", input: { command: runs.append("paid") } };
  await agent.tools.callTool(pay);
  const asks = { sessionId, callId: "asks", tool: "bash", input: { command: `${runs.append("asked")}; date` } };
  const { id: permissionId } = await read(agent.tools.executeTool(asks)).until("permissionAsked");
  await service.stop();

  await set("+40d");
  await service.start();
  const log = () => readFile(join(service.data, "log", "toolgate.log"), "utf8");
  await expect.poll(log).toContain("Nothing is removed because of 40.0 days of it");
  await service.stop();

  await set("+0");
  await service.start();
  const again = connect(service, "caller");
  expect((await again.tools.callTool(pay)).part?.state.case).toBe("completed");
  const stream = read(again.tools.executeTool(asks));
  const answered = { sessionId, permissionId, reply: PermissionReply.ONCE };
  await connect(service, "approver").permissions.respondToPermission(answered);
  expect((await stream.end()).state.case).toBe("completed");
  expect(await runs.lines()).toEqual(["paid", "asked"]);
});
