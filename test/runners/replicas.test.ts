import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { createService, type Service, unconfined } from "../e2e/service.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { connectRunner, type RunnerProgram } from "./runner-program.ts";

let redis: RedisServers;
let workspace: string;
let replicas: [Service, Service];
let runner: RunnerProgram;

/** Two replicas on one store, and a runner that is connected to the first. */
beforeAll(async () => {
  redis = await startRedis();
  workspace = await realpath(await mkdtemp(join(tmpdir(), "toolgate-shared-")));
  const settings = `store = "${redis.url}"\nlease_ms = 5000\n${unconfined}[limits]\nrunner_resume_ms = 2000\n[permission.task]\n"explore" = "allow"\n`;
  const create = () => createService({ settings, flags: ["--workspace", workspace] });
  replicas = [create(), create()];
  await Promise.all(replicas.map((replica) => replica.start()));
  runner = await connectRunner(replicas[0]);
});
afterAll(async () => {
  runner.kill();
  await Promise.all(replicas.map((replica) => replica.close()));
  await redis.stop();
  await rm(workspace, { recursive: true, force: true });
});

const work = { description: "Look", prompt: "Find it.", agent: "explore" };

function at(replica: Service, sessionId: string) {
  const { tools } = connect(replica, "caller");
  return async (callId: string, tool: string, input: JsonObject): Promise<ToolPart> => {
    const { part } = await tools.callTool({ sessionId, callId, tool, waitMs: 60_000, input });
    if (!part) throw new Error("there is no part");
    return part;
  };
}

const outputOf = ({ state }: ToolPart) => (state.case === "completed" ? state.value.output : "");

test("a task that starts at a replica without a runner fails with what to do", async () => {
  const sessionId = await connect(replicas[1], "caller").newSession();
  const { state } = await at(replicas[1], sessionId)("t1", "task", work);
  expect(state).toMatchObject({
    case: "error",
    value: {
      reason: ToolErrorReason.FAILED,
      error: expect.stringMatching(/^No agent runner is connected.* at this replica/),
    },
  });
});

test("a task of one replica is read, watched and cancelled at the other one", async () => {
  const sessionId = await connect(replicas[0], "caller").newSession();
  const [first, second] = [at(replicas[0], sessionId), at(replicas[1], sessionId)];
  const log = read(connect(replicas[1], "caller").tools.watchSession({ sessionId }));
  await first("b1", "background_task", work);
  const { run, childSession } = await runner.next("start");
  expect(outputOf(await second("o1", "background_output", { task_id: "b1.1" }))).toContain("| Status | running |");
  const waiting = second("o2", "background_output", { task_id: "b1.1", block: true });
  runner.send({ case: "done", value: { run, text: "There it is." } });
  expect(outputOf(await waiting)).toContain("There it is.");
  expect(await log.until("backgroundEnded")).toMatchObject({ callId: "b1.1", childSessionId: childSession });

  await first("b2", "background_task", work);
  const { run: cancelled } = await runner.next("start");
  expect(outputOf(await second("x1", "background_cancel", { taskId: "b2.1" }))).toBe("Cancelled 1:\nb2.1: error");
  expect(await runner.next("cancel")).toMatchObject({ run: cancelled });
  expect(await log.until("backgroundEnded")).toMatchObject({ callId: "b2.1", reason: ToolErrorReason.CANCELLED });
});

test("a task whose replica dies goes on at the one to which its runner connects; without the runner it is lost", async () => {
  const sessionId = await connect(replicas[0], "caller").newSession();
  const log = read(connect(replicas[1], "caller").tools.watchSession({ sessionId }));
  const begin = async (callId: string) => {
    await at(replicas[0], sessionId)(callId, "background_task", work);
    return await runner.next("start");
  };
  const [{ run }, { childSession }] = [await begin("b1"), await begin("b2")];
  await replicas[0].kill();
  // Before the lease of the lost replica has lapsed.
  const again = await connectRunner(replicas[1], { instanceId: runner.instanceId, held: [run] });
  again.send({ case: "done", value: { run, text: "There it is." } });
  expect(await log.until("backgroundEnded")).toMatchObject({ callId: "b1.1", reason: 0 });
  expect(await again.next("ended")).toMatchObject({ run });
  expect(await log.until("backgroundEnded")).toMatchObject({
    callId: "b2.1",
    childSessionId: childSession,
    reason: ToolErrorReason.EXECUTOR_LOST,
  });
  const ends = log.seen.filter(({ event }) => event.case === "part" && event.value.state.case === "completed");
  expect(ends.map(({ event }) => event.case === "part" && event.value.callId)).toEqual(["b1", "b2", "b1.1"]);
  const output = at(replicas[1], sessionId);
  expect(outputOf(await output("o1", "background_output", { task_id: "b1.1" }))).toContain("\nThere it is.\n");
  const after = await output("o2", "background_output", { task_id: "b2.1" });
  expect(outputOf(after)).toContain(`call task with session_id "${childSession}"`);
  again.kill();
});
