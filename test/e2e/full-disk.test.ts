import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { mountSmallDisk } from "../tmpfs.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { startService } from "./service.ts";

test("a data directory without space ends no process: open work ends, new calls are unavailable, readiness says so", async () => {
  const data = await mkdtemp(join(tmpdir(), "toolgate-data-"));
  onTestFinished(() => rm(data, { recursive: true }));
  const disk = mountSmallDisk(data, 48);
  const service = await startService({ flags: ["--data", data] });
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const execute = (callId: string, command: string, fields = {}) =>
    read(agent.tools.executeTool({ sessionId, callId, tool: "bash", input: { command }, ...fields }));
  const stateOf = async (callId: string) =>
    (await agent.tools.listToolParts({ sessionId })).parts.find((part) => part.callId === callId)?.state.case;
  const readiness = async () => (await fetch(`${service.url}/readyz`)).status;
  const asked = execute("asked", "echo never");
  const { id: permissionId } = await asked.until("permissionAsked");
  const running = execute("running", "until [ -e done ]; do sleep 0.1; done", { agent: "free" });
  await vi.waitUntil(async () => (await stateOf("running")) === "running", { timeout: 30_000 });
  expect(await readiness()).toBe(200);

  disk.fill(0);
  await vi.waitUntil(async () => (await readiness()) === 503, { timeout: 30_000 });
  const another = { sessionId, callId: "new", agent: "free", tool: "echo", input: { text: "x" } };
  expect(await refusal(agent.tools.callTool(another))).toMatchObject({
    code: Code.Unavailable,
    reason: "STORE_UNAVAILABLE",
  });
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
  expect((await asked.end()).state.case).toBe("error");
  await writeFile(join(service.workspace, "done"), "");
  expect((await running.end()).state.case).toBe("completed");
  expect((await fetch(`${service.url}/healthz`)).status).toBe(200);

  disk.empty();
  await vi.waitUntil(async () => (await readiness()) === 200, { timeout: 30_000 });
  expect((await agent.tools.callTool(another)).part?.state.case).toBe("completed");
  expect(await service.stop()).toBe(0);
});
