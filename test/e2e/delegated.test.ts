import { mkdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DecisionKind } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason, ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { shareOf } from "../breadth.ts";
import { startRedis } from "../store/redis-server.ts";
import { clientOf, connect, refusal } from "./clients.ts";
import { answerFirst, hostOf, hostTokens, inputDigest, outcomeOf } from "./host.ts";
import { createService, type Service } from "./service.ts";

const stores = {
  sqlite: async () => ({ setting: "", stop: async () => undefined }),
  redis: async () => {
    const redis = await startRedis();
    return { setting: `store = "${redis.url}"\n`, stop: () => redis.stop() };
  },
};

/** Numbers the foreign sessions, so that no test sees another's. */
let sessions = 0;
const newSession = () => `foreign-${++sessions}`;

const entries = Object.entries(stores);

describe.each(shareOf(entries, entries.slice(0, 1)))("delegated calls on %s", (_, openStore) => {
  let service: Service;
  let stopStore: () => Promise<unknown>;
  let settings: (limits: string) => string;
  let storeSetting = "";
  const approver = () => clientOf(PermissionService, service.url, "approver-token-for-tests");
  const host = (session = newSession()) => hostOf(service, session);

  beforeAll(async () => {
    const { setting, stop } = await openStore();
    stopStore = stop;
    storeSetting = setting;
    const rules = '[permission.bash]\n"echo *" = "allow"\n"rm *" = "deny"\n';
    settings = (limits: string) => `${setting}lease_ms = 2000\n${limits}${rules}${hostTokens}`;
    service = createService({ settings: settings("") });
    await service.start();
  });
  afterAll(async () => {
    await service.close();
    await stopStore();
  });

  test("a call that rules allow begins at once, and its report completes it", async () => {
    const agent = host();
    const input = { command: "echo hi", description: "Greet" };
    const begun = await agent.begun("Bash", input, { foreignCallId: "toolu_1" });
    expect(begun).toMatchObject({ input, callId: "toolu_1", sessionId: expect.stringMatching(/^ses_/) });
    expect(begun.assignment).toMatch(/^[0-9a-f]{32}$/);
    const { part: running } = await agent.tools.getToolPart({ sessionId: begun.sessionId, callId: begun.callId });
    expect(running).toMatchObject({
      tool: "claude:Bash",
      executor: ToolExecutor.DELEGATED,
      state: { case: "running", value: { title: "Greet" } },
    });
    const report = { assignment: begun.assignment, inputDigest: inputDigest(input), exit: 0 };
    const { part } = await agent.tools.finishCall({ ...report, result: { case: "output", value: "hi\n" } });
    expect(part).toMatchObject({
      reportedBy: "host",
      reportedInputDigest: inputDigest(input),
      state: { case: "completed", value: { output: "hi\n", metadata: { exit: 0, truncated: false } } },
    });
    const again = await agent.tools.finishCall({ ...report, result: { case: "error", value: "other" } });
    expect(again.part).toEqual(part);
    expect(await reportsOf(begun.sessionId)).toMatchObject([
      { by: "host", callId: "toolu_1", digest: inputDigest(input), report: { failed: false, late: false } },
    ]);
  });

  test("a denied call is refused with the reason, and a rejected one with the advice", async () => {
    const agent = host();
    expect(await agent.refused("Bash", { command: "rm -rf build" })).toMatchObject({
      reason: ToolErrorReason.DENIED,
      message: expect.stringContaining("rm"),
    });
    const call = { foreignCallId: "c2" };
    const waiting = await agent.waiting("Bash", { command: "make" }, call);
    const live = agent.refused("Bash", { command: "make" }, { ...call, waitMs: 20_000 });
    await answerFirst(approver(), waiting, { reply: PermissionReply.REJECT, message: "Use ninja." });
    expect(await live).toMatchObject({
      reason: ToolErrorReason.REJECTED,
      message: expect.stringContaining("Use ninja."),
    });
  });

  test("a request that is sent again attaches to the same call and permission request", async () => {
    const agent = host();
    const call = { foreignCallId: "c1" };
    const first = await agent.waiting("Bash", { command: "make" }, call);
    const second = await agent.waiting("Bash", { command: "make" }, call);
    expect(first.permissions).toMatchObject([{ permission: "bash", patterns: ["make"] }]);
    expect(second.permissions).toEqual(first.permissions);
    const reused = await refusal(agent.send("Bash", { command: "make all" }, call));
    expect(reused).toMatchObject({ reason: "CALL_ID_REUSED" });
  });

  test("an approval is given out to exactly one of several requests", async () => {
    const agent = host();
    const call = { foreignCallId: "c1" };
    const waiting = await agent.waiting("Bash", { command: "make" }, call);
    const live = Array.from({ length: 4 }, () =>
      agent.send("Bash", { command: "make" }, { ...call, waitMs: 20_000 }).then(
        ({ outcome }) => outcome.case,
        async (cause: unknown) => (await refusal(Promise.reject(cause))).reason,
      ),
    );
    await answerFirst(approver(), waiting);
    expect((await Promise.all(live)).toSorted()).toEqual(["ALREADY_BEGUN", "ALREADY_BEGUN", "ALREADY_BEGUN", "begun"]);
  });

  test("an edited input is what begins, after what it needs was asked for", async () => {
    const agent = host();
    const call = { foreignCallId: "c1" };
    const waiting = await agent.waiting("Bash", { command: "make install" }, call);
    await answerFirst(approver(), waiting, { input: { command: "echo dry" } });
    const begun = await agent.begun("Bash", { command: "make install" }, call);
    expect(begun.input).toEqual({ command: "echo dry" });
    const inputs = { assignment: begun.assignment, inputDigest: inputDigest({ command: "echo dry" }) };
    const { part } = await agent.tools.finishCall({ ...inputs, result: { case: "output", value: "dry" } });
    expect(part).toMatchObject({ editedBy: "approver", state: { case: "completed" } });
  });

  test("an approval after the request gave up is collected once, by the next identical use", async () => {
    const session = newSession();
    const agent = host(session);
    const input = { command: "make" };
    const waiting = await agent.waiting("Bash", input, { foreignCallId: "c1" });
    await answerFirst(approver(), waiting);
    // Another input, directory, subagent or principal is another use.
    await mkdir(join(service.workspace, session));
    await agent.waiting("Bash", { command: "make all" }, { foreignCallId: "o1" });
    await agent.waiting("Bash", input, { foreignCallId: "o2", cwd: join(service.workspace, session) });
    await agent.waiting("Bash", input, { foreignCallId: "o3", foreignAgent: "reviewer" });
    outcomeOf(await hostOf(service, session, "other-host").send("Bash", input, { waitMs: 0 }), "waiting");
    expect(await agent.begun("Bash", input, { foreignCallId: "c2" })).toMatchObject({ callId: "c1" });
    expect((await agent.waiting("Bash", input, { foreignCallId: "c3" })).permissions).toHaveLength(1);
  });

  test("a report with another input ends CHANGED_AFTER_APPROVAL and counts as an alert", async () => {
    const agent = host();
    const { assignment, sessionId } = await agent.begun("Bash", { command: "echo hi" });
    const other = { assignment, inputDigest: inputDigest({ command: "echo other" }) };
    const { part } = await agent.tools.finishCall({ ...other, result: { case: "output", value: "other" } });
    expect(part?.state.value).toMatchObject({
      reason: ToolErrorReason.CHANGED_AFTER_APPROVAL,
      effects: ToolEffects.UNKNOWN,
    });
    expect(await reportsOf(sessionId)).toMatchObject([{ report: { late: false, inputDigest: other.inputDigest } }]);
    expect(await metric("toolgate_changed_inputs_total", "claude:Bash")).toBeGreaterThan(0);
  });

  test("a failure that the host reports fails the call", async () => {
    const agent = host();
    const { assignment } = await agent.begun("Bash", { command: "echo hi" });
    const { part } = await agent.tools.finishCall({
      assignment,
      exit: 2,
      result: { case: "error", value: "no disk" },
    });
    expect(part?.state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.FAILED, error: "no disk", metadata: { exit: 2 } },
    });
  });

  test("cancelling ends a waiting call, and only marks a begun one", async () => {
    const agent = host();
    const admin = connect(service, "admin").tools;
    const waiting = await agent.waiting("Bash", { command: "make" }, { foreignCallId: "c1" });
    const [{ sessionId } = { sessionId: "" }] = waiting.permissions;
    await admin.cancelTool({ sessionId, callId: "c1", message: "Stop." });
    expect(await agent.refused("Bash", { command: "make" }, { foreignCallId: "c1" })).toMatchObject({
      reason: ToolErrorReason.CANCELLED,
      message: "Stop.",
    });
    const begun = await agent.begun("Bash", { command: "echo hi" });
    const { part } = await admin.cancelTool({ sessionId, callId: begun.callId, message: "Stop." });
    expect(part).toMatchObject({ cancelRequested: true, state: { case: "running" } });
    const result = { case: "output", value: "hi" } as const;
    const finished = await agent.tools.finishCall({ assignment: begun.assignment, result });
    expect(finished.part).toMatchObject({ cancelRequested: true, state: { case: "completed" } });
  });

  test("an approval is collected at another replica while the first one waits, and both agree on the end", async () => {
    // SQLite serves one replica.
    if (storeSetting === "") return;
    const shared = createService({ settings: settings(""), flags: ["--workspace", service.workspace] });
    try {
      await shared.start();
      const session = newSession();
      const [here, there] = [host(session), hostOf({ url: shared.url, workspace: service.workspace }, session)];
      const call = { foreignCallId: "c1", waitMs: 20_000 };
      const waiting = await here.waiting("Bash", { command: "make" }, { foreignCallId: "c1" });
      const live = [here, there].map((each) =>
        each.send("Bash", { command: "make" }, call).then(
          ({ outcome }) => (outcome.case === "begun" ? outcome.value.assignment : ""),
          async (cause: unknown) => (await refusal(Promise.reject(cause))).reason ?? "",
        ),
      );
      await answerFirst(clientOf(PermissionService, shared.url, "approver-token-for-tests"), waiting);
      const outcomes = await Promise.all(live);
      const assignment = outcomes.find((outcome) => /^[0-9a-f]{32}$/.test(outcome)) ?? "";
      expect(outcomes.toSorted()).toEqual([assignment, "ALREADY_BEGUN"].toSorted());
      // Either replica takes the report.
      const result = { case: "output", value: "made" } as const;
      const [one, other] = await Promise.all(
        [here, there].map(({ tools }) => tools.finishCall({ assignment, result })),
      );
      expect(one?.part).toMatchObject({ state: { case: "completed" } });
      expect(other?.part).toEqual(one?.part);
    } finally {
      await shared.close();
    }
  });

  test("a restart loses neither a wait nor a begun call, and the same request gets the assignment again", async () => {
    const session = newSession();
    const call = { foreignCallId: "c1" };
    const input = { command: "make" };
    const retryKey = "0123456789abcdef".repeat(2);
    const { permissions } = await hostOf(service, session).waiting("Bash", input, call);
    const begun = await hostOf(service, session).begun("Bash", { command: "echo hi" });
    // Neither an id nor the approval of another use finds the begun call again.
    const keyed = await hostOf(service, session).begun("Bash", { command: "echo keyed" }, { retryKey });
    const late = await hostOf(service, session).waiting("Bash", { command: "make late" }, { foreignCallId: "c2" });
    await answerFirst(approver(), late);
    const named = { foreignCallId: "c3", retryKey };
    const collected = await hostOf(service, session).begun("Bash", { command: "make late" }, named);
    expect(collected.callId).toBe("c2");
    await service.kill();
    await service.start();
    const agent = hostOf(service, session);
    expect(await agent.begun("Bash", { command: "echo keyed" }, { retryKey })).toMatchObject({
      ...keyed,
      input: expect.anything(),
    });
    expect(await agent.begun("Bash", { command: "make late" }, named)).toMatchObject({
      ...collected,
      input: expect.anything(),
    });
    const other = { foreignCallId: "c2", retryKey: retryKey.replace("0", "1") };
    for (const key of [other, { foreignCallId: "c2" }])
      expect(await refusal(agent.send("Bash", { command: "make late" }, key))).toMatchObject({
        reason: "ALREADY_BEGUN",
      });
    expect(await refusal(agent.send("Bash", { command: "echo other" }, { retryKey }))).toMatchObject({
      reason: "CALL_ID_REUSED",
    });
    const live = agent.begun("Bash", input, { ...call, waitMs: 20_000 });
    await answerFirst(approver(), { permissions });
    expect(await live).toMatchObject({ callId: "c1" });
    const result = { case: "output", value: "hi" } as const;
    const { part } = await agent.tools.finishCall({ assignment: begun.assignment, result });
    expect(part).toMatchObject({ state: { case: "completed" } });
  });

  test("an approval does not count once the file to change differs, and is asked for again with the new diff", async () => {
    const agent = host();
    const file_path = join(service.workspace, `${newSession()}.txt`);
    await writeFile(file_path, "one\ntwo\n");
    const input = { file_path, old_string: "two", new_string: "three" };
    const call = { foreignCallId: "c1" };
    const waiting = await agent.waiting("Edit", input, call);
    expect(waiting.permissions[0]?.preview?.diff).toContain("-two\n+three");
    await writeFile(file_path, "zero\ntwo\n");
    await answerFirst(approver(), waiting);
    const again = await agent.waiting("Edit", input, call);
    expect(again.permissions[0]?.id).not.toBe(waiting.permissions[0]?.id);
    expect(again.permissions[0]?.preview?.diff).toContain(" zero\n-two\n+three");
  });

  test("an approval is not collected for a request whose client has left", async () => {
    const agent = host();
    const left = new AbortController();
    const input = { command: "make" };
    const waiting = await agent.waiting("Bash", input, { foreignCallId: "c1" });
    const gone = refusal(agent.send("Bash", input, { foreignCallId: "c1", waitMs: 20_000 }, left.signal));
    left.abort();
    expect(await gone).toMatchObject({ code: Code.Canceled });
    await answerFirst(approver(), waiting);
    expect(await agent.begun("Bash", input, { foreignCallId: "c1" })).toMatchObject({ callId: "c1" });
  });

  async function endOf(sessionId: string, callId: string) {
    const watcher = connect(service, "watcher").tools;
    for await (const { event } of watcher.watchSession({ sessionId, callId, snapshot: true })) {
      if (event?.event.case === "part" && event.event.value.state.case === "error")
        return event.event.value.state.value;
    }
    throw new Error("the stream ended");
  }

  async function reportsOf(sessionId: string) {
    const { entries } = await approver().listDecisions({ sessionId });
    return entries.flatMap(({ record }) => (record?.kind === DecisionKind.REPORTED ? [record] : []));
  }

  async function metric(name: string, tool: string): Promise<number> {
    const headers = { authorization: "Bearer watcher-token-for-tests" };
    const text = await (await fetch(`${service.url}/metrics`, { headers })).text();
    const samples = text.split("\n").filter((line) => line.startsWith(`${name}{tool="${tool}"`));
    return samples.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  }

  test("a host reads its own sessions only, and calls no tools", async () => {
    const agent = host();
    const { sessionId } = await agent.begun("Bash", { command: "echo hi" });
    const list = async (id: string) =>
      (await clientOf(SessionService, service.url, `${id}-token-for-tests`).listSessions({})).sessions;
    expect((await list("host")).map(({ id }) => id)).toContain(sessionId);
    expect((await list("other-host")).map(({ id }) => id)).not.toContain(sessionId);
    const other = hostOf(service, newSession(), "other-host");
    expect(await refusal(other.tools.listToolParts({ sessionId }))).toMatchObject({ reason: "NO_SUCH_SESSION" });
    for (const request of [agent.tools.callTool({ tool: "echo" }), agent.tools.cancelTool({ sessionId, callId: "c" })])
      expect(await refusal(request)).toMatchObject({ reason: "ROLE_MISSING" });
    const caller = clientOf(PermissionService, service.url, "host-token-for-tests");
    expect(await refusal(caller.rejectPermissions({ sessionId }))).toMatchObject({ reason: "ROLE_MISSING" });
  });

  test("an assignment is worth nothing to another token", async () => {
    const { assignment } = await host().begun("Bash", { command: "echo hi" });
    const stranger = hostOf(service, newSession(), "other-host").tools;
    const result = { case: "output", value: "forged" } as const;
    expect(await refusal(stranger.finishCall({ assignment, result }))).toMatchObject({
      reason: "NO_SUCH_ASSIGNMENT",
    });
    const guess = { assignment: "0".repeat(32), result };
    expect(await refusal(host().tools.finishCall(guess))).toMatchObject({ reason: "NO_SUCH_ASSIGNMENT" });
  });

  test("a directory outside the token's workspaces is refused, also through a link", async () => {
    const agent = host();
    expect(await refusal(agent.send("Bash", { command: "echo hi" }, { cwd: "/" }))).toMatchObject({
      reason: "UNKNOWN_WORKSPACE",
    });
    const link = join(service.workspace, newSession());
    await symlink("/tmp", link);
    expect(await refusal(agent.send("Bash", { command: "echo hi" }, { cwd: link }))).toMatchObject({
      reason: "UNKNOWN_WORKSPACE",
    });
  });

  test("without a request or a report in time, an approval ends EXPIRED and a begun call NOT_REPORTED", async () => {
    await service.configure(settings("[limits]\nreport_ms = 1000\ncollect_ms = 1000\n"));
    await service.kill();
    await service.start();
    const agent = host();
    const call = { foreignCallId: "c1" };
    const waiting = await agent.waiting("Bash", { command: "make" }, call);
    await answerFirst(approver(), waiting);
    const { assignment, sessionId, callId } = await agent.begun("Glob", { pattern: "*" });
    const [expired, unreported] = await Promise.all([endOf(sessionId, "c1"), endOf(sessionId, callId)]);
    expect(expired).toMatchObject({ reason: ToolErrorReason.EXPIRED, effects: ToolEffects.NONE });
    expect(await agent.refused("Bash", { command: "make" }, call)).toMatchObject({ reason: ToolErrorReason.EXPIRED });
    expect(unreported).toMatchObject({ reason: ToolErrorReason.NOT_REPORTED, effects: ToolEffects.UNKNOWN });
    // A later report goes to the audit only, once.
    for (const value of ["late", "later"]) {
      const { part } = await agent.tools.finishCall({ assignment, result: { case: "output", value } });
      expect(part).toMatchObject({ reportedBy: "", state: { case: "error" } });
    }
    expect(await reportsOf(sessionId)).toMatchObject([{ by: "host", report: { late: true, failed: false } }]);
    // It counts neither as a success nor as a failure.
    expect(await metric("toolgate_calls_not_reported_total", "claude:Glob")).toBe(1);
    for (const name of ["toolgate_calls_total", "toolgate_call_errors_total"])
      expect(await metric(name, "claude:Glob")).toBe(0);
  });

  test("a call whose subagent works is not over: its time to report begins with the subagent's last event", async () => {
    await service.configure(settings("[limits]\nreport_ms = 1500\n"));
    await service.kill();
    await service.start();
    const session = newSession();
    const agent = hostOf(service, session);
    const input = { subagent_type: "reviewer", prompt: "Look" };
    const use = { foreignParent: session, foreignAgent: "reviewer" };
    await hostOf(service, `${session}/a1`).waiting("Bash", { command: "make" }, use);
    const begin = async (foreignCallId: string) => {
      await answerFirst(approver(), await agent.waiting("Agent", input, { foreignCallId }));
      return await agent.begun("Agent", input, { foreignCallId });
    };
    const { assignment, sessionId } = await begin("task");
    // Control: a tool that starts no subagent.
    const { callId: other } = await agent.begun("Glob", { pattern: "*" });
    expect(await endOf(sessionId, other)).toMatchObject({ reason: ToolErrorReason.NOT_REPORTED });
    const { part: open } = await agent.tools.getToolPart({ sessionId, callId: "task" });
    expect(open?.state.case).toBe("running");
    const result = { case: "output", value: "Looked." } as const;
    const { part } = await agent.tools.finishCall({ assignment, result });
    expect(part?.state.case).toBe("completed");

    // A subagent that is gone has no open call, and no more events.
    await begin("gone");
    for (const { id, sessionId } of (await approver().listPermissions({})).permissions)
      await approver().respondToPermission({ permissionId: id, sessionId, reply: PermissionReply.REJECT });
    expect(await endOf(sessionId, "gone")).toMatchObject({ reason: ToolErrorReason.NOT_REPORTED });
  });
});
