import { readFile } from "node:fs/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";
import { PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { inParallel } from "./load.ts";
import { isLong, report } from "./report.ts";
import { startSystem } from "./system.ts";

test("F11 of two concurrent answers to each of many asks, at three replicas, exactly one wins", async () => {
  const asks = isLong ? 10_000 : 500;
  const sessions = asks / 100;
  const settings = "[limits]\nopen_asks = 200\nrunning_calls = 200\n";
  const system = await startSystem({ leaseMs: 15_000, settings: `ask_ms = 3600000\n${settings}` });
  const all = Array.from({ length: asks }, (_, index) => index);

  const begun = performance.now();
  await inParallel(all.slice(0, sessions), 20, async (index) => {
    await system
      .at(index)
      .as("caller")
      .sessions.createSession({ sessionId: `ses_${index}` });
  });
  const open: PermissionRequest[] = [];
  await inParallel(all, 40, async (index) => {
    const call = { sessionId: `ses_${index % sessions}`, callId: `c${index}`, tool: "write" };
    const { tools } = system.at(index).as("caller");
    await tools.callTool({ ...call, input: { filePath: `f${index}.txt`, content: `${index}` }, waitMs: 0 });
  });
  await inParallel(all, 40, async (index) => {
    const call = { sessionId: `ses_${index % sessions}`, callId: `c${index}` };
    const asked = async () => (await system.at(index).as("caller").tools.getToolPart(call)).permissions[0];
    open.push(await vi.waitUntil(asked, { timeout: 240_000 }));
  });
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
