import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { clientOf, connect } from "../../e2e/clients.ts";
import { createService, type Service, unconfined } from "../../e2e/service.ts";
import { type RedisServers, startRedis } from "../../store/redis-server.ts";
import { connectWorker, echoTool, newInstance, type RawHello } from "./raw-worker.ts";

let redis: RedisServers;
let replicas: [Service, Service];

beforeAll(async () => {
  redis = await startRedis();
  const settings = `
store = "${redis.url}"
${unconfined}
[permission]
"ci_*" = "allow"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*"]
value = "ci-worker-token-for-tests"
`;
  replicas = [createService({ settings }), createService({ settings })];
  await Promise.all(replicas.map((replica) => replica.start()));
});

afterAll(async () => {
  await Promise.all(replicas.map((replica) => replica.close()));
  await redis.stop();
});

async function workerFor(service: Service, hello: RawHello = {}) {
  const worker = await connectWorker(service, hello);
  onTestFinished(worker.cut);
  return worker;
}

const list = ({ url }: Service) => clientOf(WorkerService, url, "watcher-token-for-tests").listWorkers({});

/** Returns how a replica lists a process. */
async function listed(at: Service, instance: string) {
  const { workers } = await list(at);
  return workers.find(({ instanceId }) => instanceId === instance);
}

test("each replica lists the workers of all, under the replica to which they connected last", async () => {
  const [one, other] = replicas;
  const instanceId = newInstance();
  const worker = await workerFor(one, { instanceId, buildId: "b1", generation: 3n });
  await expect.poll(() => listed(other, instanceId)).toMatchObject({ connected: true, buildId: "b1", generation: 3n });
  const first = await listed(one, instanceId);
  expect(first?.replica).not.toBe("");
  expect(await listed(other, instanceId)).toMatchObject({ replica: first?.replica, connection: 1n, running: 0 });
  const moved = await workerFor(other, { instanceId, connection: 2n });
  await expect.poll(async () => (await listed(one, instanceId))?.connection).toBe(2n);
  const second = await listed(one, instanceId);
  expect(second).toMatchObject({ connected: true, replica: (await listed(other, instanceId))?.replica });
  expect(second?.replica).not.toBe(first?.replica);
  moved.send({ case: "capacity", value: { capacity: 2, draining: true } });
  await expect.poll(() => listed(one, instanceId)).toMatchObject({ capacity: 2, draining: true });
  worker.cut();
});

test("of two processes with one instance ID at two replicas the later wins, and what the earlier ran is lost", async () => {
  const [one, other] = replicas;
  const instanceId = newInstance();
  const tools = [echoTool("ci_twin")];
  const first = await workerFor(one, { instanceId, tools });
  const { tools: agent, newSession } = connect(one, "caller");
  const calling = agent.callTool({
    ...{ sessionId: await newSession(), callId: "twin", tool: "ci_twin", input: { text: "twin" }, waitMs: 60_000 },
  });
  await first.next("start");
  await expect.poll(() => listed(other, instanceId)).toMatchObject({ connected: true });
  const second = await workerFor(other, { instanceId, tools });
  const later = (await listed(other, instanceId))?.replica;
  let end: unknown;
  void first.ended.then((error) => (end = error));
  // The earlier one's replica learns of the later one when it announces a change.
  let capacity = 0;
  await expect
    .poll(() => {
      capacity += 1;
      first.send({ case: "capacity", value: { capacity } });
      return end;
    })
    .toMatchObject({ rawMessage: expect.stringContaining("its own instance_id") });
  expect((await calling).part?.state).toMatchObject({ value: { reason: ToolErrorReason.EXECUTOR_LOST } });
  await expect.poll(async () => (await listed(one, instanceId))?.replica).toBe(later);
  second.cut();
});

test("a fleet shows the calls that wait for it; a call that no worker took learns that its fleet is busy elsewhere", async () => {
  const [one, other] = replicas;
  const tools = [echoTool("ci_single")];
  const worker = await workerFor(one, { worker: "single", capacity: 1, tools });
  const { tools: agent, newSession } = connect(other, "caller");
  const offered = async () => (await agent.listTools({})).tools.map(({ name }) => name);
  await expect.poll(offered).toContain("ci_single");
  await expect.poll(() => listed(other, worker.instanceId)).toBeDefined();
  const sessionId = await newSession();
  const call = (callId: string) => ({ sessionId, callId, tool: "ci_single", input: { text: callId } });
  await agent.callTool({ ...call("first"), waitMs: 0 });
  const start = await worker.next("start");
  await agent.callTool({ ...call("second"), waitMs: 0 });
  const fleet = async () => (await list(other)).fleets.find((each) => each.worker === "single");
  await expect.poll(fleet).toMatchObject({ principal: "ci-worker", tools: ["ci_single"], waiting: 1 });
  const { part } = await agent.callTool({ ...call("third"), queueMs: 100, waitMs: 60_000 });
  expect(part?.state).toMatchObject({
    value: { reason: ToolErrorReason.UNAVAILABLE, error: expect.stringContaining('the fleet "single" is busy') },
  });
  worker.complete(start);
  worker.complete(await worker.next("start"));
  await expect.poll(fleet).toMatchObject({ waiting: 0 });
});

test("a replica that stops leaves no worker behind; its fleet is still known, with the time of its last sign", async () => {
  const [one, other] = replicas;
  const tools = [echoTool("ci_left")];
  const worker = await workerFor(other, { worker: "left", resumeMs: 600_000, tools });
  await expect.poll(() => listed(one, worker.instanceId)).toMatchObject({ connected: true });
  const before = Date.now();
  await other.stop();
  expect(await listed(one, worker.instanceId)).toBeUndefined();
  const { fleets } = await list(one);
  const fleet = fleets.find((each) => each.worker === "left");
  expect(fleet).toMatchObject({ principal: "ci-worker", tools: ["ci_left"], waiting: 0 });
  expect(fleet?.seen).toBeGreaterThan(before - 60_000);
  const { tools: agent } = connect(one, "caller");
  const { part } = await agent.callTool({ tool: "ci_left", input: { text: "hello" }, queueMs: 0, waitMs: 60_000 });
  expect(part?.state).toMatchObject({
    value: { error: expect.stringContaining("is not connected; it was last seen at 20") },
  });
  await other.start();
});
