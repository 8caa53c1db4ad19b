import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";
import { PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  ToolErrorReason,
  type ToolPart,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { endsOf, inParallel } from "./load.ts";
import { isLong, report } from "./report.ts";
import { type System, startSystem } from "./system.ts";

test("F11 of two concurrent answers to each of many asks, at three replicas, exactly one wins", async () => {
  const asks = isLong ? 5_000 : 300;
  const sessions = asks / 100;
  const settings = "[limits]\nopen_asks = 200\nrunning_calls = 200\n";
  const system = await startSystem({ leaseMs: 15_000, settings: `ask_ms = 3600000\n${settings}` });
  const all = Array.from({ length: asks }, (_, index) => index);

  const begun = performance.now();
  const open = await openAsks(system, all, sessions);
  const opened = performance.now() - begun;
  const memory = await Promise.all(
    system.replicas.map(async ({ pid }) => /VmRSS:\s+(\d+)/.exec(await readFile(`/proc/${pid}/status`, "utf8"))?.[1]),
  );

  // Four clients, two principals; each principal answers each ask once, in a different order.
  let [won, lost] = [0, 0];
  const replies = open.flatMap((ask, index) => [
    { ask, who: "approver" as const, at: index, order: (index * 7_919) % asks },
    { ask, who: "deputy" as const, at: index + 1, order: (index * 7_919 + 13) % asks },
  ]);
  const answered = performance.now();
  await inParallel(
    replies.sort((one, other) => one.order - other.order),
    4 * 25,
    async ({ ask, who, at }) => {
      const { sessionId, id: permissionId } = ask;
      const reply = who === "approver" ? PermissionReply.ONCE : PermissionReply.REJECT;
      const response = { sessionId, permissionId, reply, replyId: `${who} ${permissionId}` };
      try {
        await system.at(at).as(who).permissions.respondToPermission(response);
        won += 1;
      } catch (error) {
        if (!(error instanceof ConnectError) || error.code !== Code.FailedPrecondition) throw error;
        const [settled] = error.findDetails(PermissionSettledSchema);
        expect(settled?.permissionId).toBe(permissionId);
        lost += 1;
      }
    },
  );
  const raced = (performance.now() - answered) / 1_000;
  expect({ won, lost }).toEqual({ won: asks, lost: asks });
  report({
    fault: "F11 two answers to each ask at once",
    ...{ faults: asks, calls: asks, answers: 2 * asks, runs: 0, violations: 0 },
    seen: `${won} winners in ${raced.toFixed(1)} s; opened in ${(opened / 1_000).toFixed(1)} s; ${memory.map((kilobytes) => Math.round(Number(kilobytes) / 1_024)).join(", ")} MiB`,
  });
});

/** Opens one ask for each number, in this many sessions, at all replicas. */
async function openAsks(system: System, all: readonly number[], sessions: number): Promise<PermissionRequest[]> {
  await inParallel(all.slice(0, sessions), 20, async (index) => {
    await system
      .at(index)
      .as("caller")
      .sessions.createSession({ sessionId: `ses_${index}` });
  });
  const callOf = (index: number) => ({ sessionId: `ses_${index % sessions}`, callId: `c${index}` });
  const open: PermissionRequest[] = [];
  await inParallel(all, 40, async (index) => {
    const { tools } = system.at(index).as("caller");
    const input = { filePath: `f${index}.txt`, content: `${index}` };
    await tools.callTool({ ...callOf(index), tool: "write", input, waitMs: 0 });
  });
  await inParallel(all, 40, async (index) => {
    const asked = async () => (await system.at(index).as("caller").tools.getToolPart(callOf(index))).permissions[0];
    open.push(await vi.waitUntil(asked, { timeout: 240_000 }));
  });
  return open;
}

/** Answers until a replica responds; true for the winner. */
async function answer(
  system: System,
  ask: PermissionRequest,
  who: "approver" | "deputy",
  at: number,
): Promise<boolean> {
  const { sessionId, id: permissionId } = ask;
  const reply = who === "approver" ? PermissionReply.ONCE : PermissionReply.REJECT;
  const response = { sessionId, permissionId, reply, replyId: `${who} ${permissionId}` };
  for (let attempt = 0; ; attempt += 1) {
    try {
      await system
        .at(at + attempt)
        .as(who)
        .permissions.respondToPermission(response);
      return true;
    } catch (error) {
      if (!(error instanceof ConnectError)) throw error;
      if (error.code === Code.FailedPrecondition) return false;
      if (attempt === 600) throw error;
      // The replica was killed, or starts.
      await delay(100);
    }
  }
}

test("F16 open asks survive kill -9 of every replica while approvers race, and each call runs at most once", async () => {
  const count = isLong ? 3_000 : 300;
  const sessions = count / 100;
  const settings = "[limits]\nopen_asks = 200\nrunning_calls = 200\n";
  const system = await startSystem({ settings: `ask_ms = 3600000\n${settings}` });
  const all = Array.from({ length: count }, (_, index) => index);
  const open = await openAsks(system, all, sessions);

  const winners = new Map<string, string[]>();
  const racing = inParallel(
    open.flatMap((ask, index) => [
      { ask, who: "approver" as const, at: index },
      { ask, who: "deputy" as const, at: index + 1 },
    ]),
    20,
    async ({ ask, who, at }) => {
      if (await answer(system, ask, who, at)) winners.set(ask.id, [...(winners.get(ask.id) ?? []), who]);
    },
  );
  for (const replica of system.replicas) {
    await delay(200);
    await replica.kill();
    await replica.start();
  }
  await racing;
  expect([...winners.values()].map((each) => each.length).filter((each) => each !== 1)).toEqual([]);
  expect(winners.size).toBe(count);

  const ends: ToolPart[] = [];
  await inParallel(open, 40, async (ask) => {
    const call = { sessionId: ask.sessionId, callId: ask.tool?.callId ?? "" };
    const ended = async () => {
      const { part } = await system.at(0).as("caller").tools.getToolPart(call);
      return part?.state.case === "completed" || part?.state.case === "error" ? part : undefined;
    };
    const part = await vi.waitUntil(ended, { timeout: 240_000, interval: 200 });
    ends.push(part);
    const isWritten = await stat(join(system.workspace, `f${call.callId.slice(1)}.txt`)).then(
      () => true,
      () => false,
    );
    const reason = part.state.case === "error" ? part.state.value.reason : undefined;
    const isApproved = winners.get(ask.id)?.[0] === "approver";
    if (part.state.case === "completed") expect(isApproved && isWritten).toBe(true);
    // A replica that was killed while the body ran.
    else if (isApproved) expect(reason).toBe(ToolErrorReason.EXECUTOR_LOST);
    else expect([reason, isWritten]).toEqual([ToolErrorReason.REJECTED, false]);
  });
  report({
    fault: "F16 kill -9 of every replica during racing answers",
    ...{ faults: system.replicas.length, calls: count, answers: 2 * count, runs: 0, violations: 0 },
    seen: endsOf(ends),
  });
});
