import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startRedis } from "../store/redis-server.ts";
import { connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { type Service, startService, unconfined } from "./service.ts";

/** A tool file that records each run; `says` changes its definition, `args` what it takes. */
const deployTool = (says: string, args = "target") => `
import { appendFile } from "node:fs/promises";
import { tool } from "toolgate/plugin";
export default tool({
  description: ${JSON.stringify(says)},
  args: { ${args}: tool.schema.string() },
  async execute() { await appendFile("runs", ${JSON.stringify(`${says}\n`)}); return "deployed"; },
});
`;

async function writeTool(service: Service, text: string): Promise<void> {
  const file = join(dirname(service.config), "tool/deploy.ts");
  await mkdir(dirname(file), { recursive: true });
  await writeFile(file, text);
}

/** Has a call ask; `named` names the definition that is offered now. */
async function ask(service: Service, tool: string, input: JsonObject, { named = false } = {}) {
  const { tools, newSession } = connect(service, "caller");
  const offered = (await tools.listTools({})).tools.find(({ name }) => name === tool);
  const definitionId = named ? (offered?.definitionId ?? "") : "";
  const call = { sessionId: await newSession(), callId: "c1", tool, input, definitionId };
  const { id } = await read(tools.executeTool(call)).until("permissionAsked");
  return { call, id, stream: () => read(connect(service, "caller").tools.executeTool(call)) };
}

const requestsOf = async (service: Service, sessionId: string) =>
  (await connect(service, "approver").permissions.listPermissions({ sessionId })).permissions;

async function approve(service: Service, sessionId: string, permissionId: string): Promise<void> {
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE };
  await connect(service, "approver").permissions.respondToPermission(answer);
}

/** Settings that keep the calls of a service on SQLite, or in a Redis of the test. */
const stores = {
  SQLite: async () => "",
  async Redis() {
    const redis = await startRedis();
    onTestFinished(redis.stop);
    return `store = "${redis.url}"\nlease_ms = 2000\n`;
  },
};

test.each(Object.entries(stores))(
  "on %s, a tool file that changed over a restart asks again and says so; the answer is for the tool as it is",
  async (_, store) => {
    const service = await startService({ settings: `${await store()}${unconfined}` });
    await writeTool(service, deployTool("One."));
    const waits = await ask(service, "deploy", { target: "prod" });
    const named = await ask(service, "deploy", { target: "prod" }, { named: true });
    await service.kill();
    await writeTool(service, deployTool("Two."));
    await service.start();

    const { sessionId } = waits.call;
    const again = () => requestsOf(service, sessionId);
    await expect.poll(again).toMatchObject([{ changed: "the tool has changed since" }]);
    const [request] = await again();
    expect(request?.id).not.toBe(waits.id);
    const stream = waits.stream();
    await approve(service, sessionId, request?.id ?? "");
    expect((await stream.end()).state).toMatchObject({ case: "completed", value: { output: "deployed" } });
    const outcomes = stream.seen.flatMap(({ event }) =>
      event.case === "permissionSettled" ? [event.value.outcome] : [],
    );
    expect(outcomes).toEqual([PermissionOutcome.WITHDRAWN, PermissionOutcome.ONCE]);
    expect(await readFile(join(service.workspace, "runs"), "utf8")).toBe("Two.\n");

    // Its caller wants the tool that it named, and no other.
    expect((await named.stream().end()).state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.STALE_TOOL, effects: ToolEffects.NONE },
    });
    expect(await requestsOf(service, named.call.sessionId)).toEqual([]);
  },
);

test("an approval that comes with a saved tool file is not recorded, and the call asks again", async () => {
  const service = await startService({ settings: unconfined });
  await writeTool(service, deployTool("One."));
  const { call, id, stream } = await ask(service, "deploy", { target: "prod" });
  await writeTool(service, deployTool("Two."));
  expect(await refusal(approve(service, call.sessionId, id))).toMatchObject({ reason: "ASK_CLOSED" });
  await expect
    .poll(() => requestsOf(service, call.sessionId))
    .toMatchObject([{ changed: "the tool has changed since" }]);
  const [request] = await requestsOf(service, call.sessionId);
  await approve(service, call.sessionId, request?.id ?? "");
  expect((await stream().end()).state).toMatchObject({ case: "completed", value: { output: "deployed" } });
});

test("a saved tool file that takes other input, or is gone, ends the calls that wait before a person answers", async () => {
  const service = await startService({ settings: unconfined });
  await writeTool(service, deployTool("One."));
  const changed = await ask(service, "deploy", { target: "prod" });
  await writeTool(service, deployTool("One.", "place"));
  const stale = { case: "error", value: { reason: ToolErrorReason.STALE_TOOL, effects: ToolEffects.NONE } };
  expect((await changed.stream().end()).state).toMatchObject(stale);

  const removed = await ask(service, "deploy", { place: "prod" });
  await rm(join(dirname(service.config), "tool/deploy.ts"));
  const { state } = await removed.stream().end();
  expect(state).toMatchObject(stale);
  expect(state.case === "error" && state.value.error).toContain("is not there any more");
  expect(await requestsOf(service, "")).toEqual([]);
});
