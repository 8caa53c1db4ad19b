import { describe, expect, test } from "vitest";
import { OperatorService, type StopTarget } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import { DecisionKind, PermissionLayer, PermissionReason } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { clientOf, connect, refusal } from "./clients.ts";
import { hostOf, hostTokens } from "./host.ts";
import { outputOf, read } from "./reading.ts";
import { useReplicas } from "./replicas.ts";
import { type Principal, type Service, unconfined, useService } from "./service.ts";

const { CANCELLED, DENIED, REJECTED } = ToolErrorReason;

const operatorOf = (service: Service, who: Principal = "approver") =>
  clientOf(OperatorService, service.url, `${who}-token-for-tests`);

const agentNamed = (value: string): { target: StopTarget["target"] } => ({ target: { case: "agent", value } });

/** Begins a call of bash, and waits until its command runs, or asks. */
async function begin(service: Service, agent: string, command: string, session?: string) {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = session ?? (await newSession());
  const call = { sessionId, callId: `c_${agent}`, agent, tool: "bash", input: { command } };
  const stream = read(tools.executeTool(call));
  if (agent === "free") while (!outputOf(stream.seen).includes("runs")) await stream.until("output");
  else await stream.until("permissionAsked");
  return { call, stream };
}

async function run(service: Service, agent: string, sessionId?: string) {
  const { tools, newSession } = connect(service, "caller");
  const session = sessionId ?? (await newSession());
  const { part } = await tools.callTool({ sessionId: session, agent, tool: "bash", input: { command: "echo done" } });
  return { sessionId: session, state: part?.state };
}

const runs = "echo runs; sleep 600";

describe("on SQLite", () => {
  const service = useService({ settings: `${unconfined}${hostTokens}` });

  test("a stopped agent starts nothing, what runs is cancelled; others go on, and the audit says who it was", async () => {
    const { stream } = await begin(service, "free", runs);
    const { stream: other } = await begin(service, "build", "mkdir made");
    const stopped = await operatorOf(service).stop({ target: agentNamed("free"), reason: "it loops" });
    expect(stopped).toMatchObject({ rejected: 0, cancelled: 1, stop: { by: "approver", reason: "it loops" } });
    expect((await stream.end()).state).toMatchObject({ case: "error", value: { reason: CANCELLED } });

    const { sessionId, state } = await run(service, "free");
    const text = expect.stringMatching(/^Nothing was run: agent "free" was stopped by approver at .*Stop working now/);
    expect(state).toMatchObject({ case: "error", value: { reason: DENIED, effects: ToolEffects.NONE, error: text } });
    const { permissions } = connect(service, "approver");
    const denied = (await permissions.listDecisions({ sessionId })).entries.map(({ record }) => record);
    expect(denied).toMatchObject([
      {
        kind: DecisionKind.DENIED,
        decisions: [{ layer: PermissionLayer.ENGINE, reasonCode: PermissionReason.STOPPED }],
      },
    ]);
    const plan = await connect(service, "caller").tools.planTool({
      agent: "free",
      tool: "bash",
      input: { command: "ls" },
    });
    expect(plan.decisions).toMatchObject([{ reasonCode: PermissionReason.STOPPED }]);
    expect(other.seen.some(({ event }) => event.case === "permissionSettled")).toBe(false);

    await service.kill();
    await service.start();
    expect((await run(service, "free")).state).toMatchObject({ value: { reason: DENIED } });
    expect(await operatorOf(service).resume({ target: agentNamed("free") })).toMatchObject({
      stop: { by: "approver" },
    });
    expect((await run(service, "free")).state).toMatchObject({ case: "completed" });
    const { entries } = await connect(service, "watcher").permissions.listDecisions({ sessionId: "ses_toolgate" });
    expect(entries.map(({ record }) => record)).toMatchObject([
      {
        kind: DecisionKind.STOPPED,
        by: "approver",
        agent: "free",
        decisions: [{ reason: expect.stringMatching(/: it loops$/) }],
      },
      { kind: DecisionKind.RESUMED, by: "approver", agent: "free" },
    ]);
  });

  test("a stopped session takes its descendants along; what waits is rejected, and no other session is touched", async () => {
    const { newSession } = connect(service, "caller");
    const parent = await newSession();
    const child = await newSession({ parentSessionId: parent });
    const { call, stream } = await begin(service, "build", "mkdir made", child);
    const target = { target: { case: "sessionId", value: parent } } as const;
    expect(await operatorOf(service).stop({ target })).toMatchObject({ rejected: 1, cancelled: 0 });
    expect((await stream.end()).state).toMatchObject({ value: { reason: REJECTED, effects: ToolEffects.NONE } });
    const { permissions } = await connect(service, "approver").permissions.listPermissions({ sessionId: parent });
    expect(permissions).toEqual([]);
    for (const sessionId of [parent, child])
      expect((await run(service, "free", sessionId)).state).toMatchObject({ value: { reason: DENIED } });
    expect((await run(service, "free")).state).toMatchObject({ case: "completed" });
    const { entries } = await connect(service, "approver").permissions.listDecisions({ sessionId: call.sessionId });
    expect(entries.map(({ record }) => record?.kind)).toContain(DecisionKind.STOPPED);
    await operatorOf(service).resume({ target });
    expect((await run(service, "free", child)).state).toMatchObject({ case: "completed" });
  });

  test("a call that its host runs is asked to stop, and a new one of it is refused", async () => {
    const host = hostOf(service, "stopped");
    const waiting = await host.waiting("Bash", { command: "mkdir made" }, { foreignCallId: "one" });
    const [request] = waiting.permissions;
    const answer = {
      sessionId: request?.sessionId ?? "",
      permissionId: request?.id ?? "",
      reply: PermissionReply.ONCE,
    };
    await connect(service, "approver").permissions.respondToPermission(answer);
    const begun = await host.begun("Bash", { command: "mkdir made" }, { foreignCallId: "one" });
    const { rejected, cancelled } = await operatorOf(service).stop({
      target: { target: { case: "all", value: true } },
    });
    expect({ rejected, cancelled }).toMatchObject({ cancelled: expect.any(Number) });
    const { part } = await connect(service, "admin").tools.getToolPart({
      sessionId: request?.sessionId ?? "",
      callId: "one",
    });
    expect(part).toMatchObject({ cancelRequested: true, state: { case: "running" } });
    expect(begun.assignment).not.toBe("");
    const refused = await host.refused("Bash", { command: "mkdir made" }, { foreignCallId: "two" });
    expect(refused.message).toContain("every agent was stopped by approver");
    await operatorOf(service).resume({ target: { target: { case: "all", value: true } } });
  });

  test("an agent neither stops nor resumes; who did not stop resumes only as admin", async () => {
    const stop = { target: agentNamed("plan") };
    for (const who of ["caller", "watcher"] as const) {
      expect(await refusal(operatorOf(service, who).stop(stop))).toMatchObject({ reason: "ROLE_MISSING" });
      expect(await refusal(operatorOf(service, who).resume(stop))).toMatchObject({ reason: "ROLE_MISSING" });
    }
    await operatorOf(service).stop(stop);
    expect((await operatorOf(service, "watcher").listStops({})).stops).toMatchObject([{ by: "approver" }]);
    expect(await refusal(operatorOf(service, "deputy").resume(stop))).toMatchObject({ reason: "ROLE_MISSING" });
    expect(await operatorOf(service, "admin").resume(stop)).toMatchObject({ stop: { by: "approver" } });
    expect((await operatorOf(service).resume(stop)).stop).toBeUndefined();
  });

  test("`toolgate stop` and `toolgate resume` name what they stopped", async () => {
    const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
    const command = (...args: string[]) => toolgate(args, environment);
    expect((await command("stop", "agent", "free", "--reason", "loops")).stdout).toMatch(
      /agent free .*stopped by approver.*loops/,
    );
    expect((await command("stop")).stdout).toContain("agent free");
    expect((await command("resume", "agent", "free")).stdout).toContain("resumed");
    expect((await command("stop")).stderr).toContain("nothing is stopped");
    expect((await command("resume")).code).toBe(2);
    expect((await command("resume", "agent")).stderr).toContain("toolgate resume agent NAME");
  });
});

describe("on Redis", () => {
  const replicas = useReplicas();

  test("once a stop returns, no replica starts a call, and what ran at another one is cancelled", async () => {
    const [a, b, c] = replicas().all;
    // Nothing runs whose end a stop could wait for.
    await operatorOf(a).stop({ target: agentNamed("free") });
    for (const { state } of await Promise.all([b, c].map((replica) => run(replica, "free"))))
      expect(state).toMatchObject({ value: { reason: DENIED } });
    await operatorOf(a).resume({ target: agentNamed("free") });
    await expect.poll(async () => (await run(c, "free")).state?.case).toBe("completed");

    const { stream } = await begin(c, "free", runs);
    await operatorOf(a).stop({ target: agentNamed("free") });
    for (const replica of [a, b, c])
      expect((await run(replica, "free")).state).toMatchObject({ value: { reason: DENIED } });
    expect((await stream.end()).state).toMatchObject({ case: "error", value: { reason: CANCELLED } });
    await operatorOf(b).resume({ target: agentNamed("free") });
    await expect.poll(async () => (await run(c, "free")).state?.case).toBe("completed");
  });
});
