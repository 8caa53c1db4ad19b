import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { PermissionAction as Action, GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type Clients, connect } from "./clients.ts";
import { nameOf, read } from "./reading.ts";
import { useReplicas } from "./replicas.ts";
import { startService, useService } from "./service.ts";

/** Makes calls for the same thing, each under a new id; returns how each ended, or what is asked. */
function looper(agents: readonly Clients[], sessionId: string) {
  let count = 0;
  return async (input = { text: "again" }) => {
    const agent = agents[count % agents.length];
    count += 1;
    if (!agent) throw new Error("there is no agent");
    const call = { sessionId, callId: `c${count}`, tool: "echo", input };
    const stream = read(agent.tools.executeTool(call));
    const { event } = await stream.find(
      ({ event }) =>
        event.case === "permissionAsked" ||
        (event.case === "part" && ["completed", "error"].includes(event.value.state.case ?? "")),
    );
    const asked = event.case === "permissionAsked" ? event.value : undefined;
    return { asked, stream, ended: event.case === "part" ? event.value.state : undefined, call };
  };
}

describe("on one replica", () => {
  const service = useService({ settings: '[agent.stopped.permission]\ndoom_loop = "deny"\n' });

  test("the third call in a row for the same thing asks, under any id, and so does every further one", async () => {
    const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
    const sessionId = await agent.newSession();
    const again = looper([agent], sessionId);
    expect([(await again()).ended?.case, (await again()).ended?.case]).toEqual(["completed", "completed"]);
    const third = await again();
    expect(third.asked).toMatchObject({
      permission: "doom_loop",
      patterns: ["echo"],
      metadata: { tool: "echo", input: { text: "again" }, repeats: 2 },
      offers: [
        { scope: GrantScope.SESSION, match: { match: { case: "exact", value: "echo" } } },
        { scope: GrantScope.AGENT },
        { scope: GrantScope.PROJECT },
      ],
    });
    const permissionId = third.asked?.id ?? "";
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    expect((await third.stream.end()).state.case).toBe("completed");
    expect((await again()).asked?.permission).toBe("doom_loop");
  });

  test("another call in between breaks the row, also one that was made elsewhere does not count", async () => {
    const agent = connect(service, "caller");
    const sessionId = await agent.newSession();
    const child = await agent.newSession({ parentSessionId: sessionId });
    const [again, elsewhere] = [looper([agent], sessionId), looper([agent], child)];
    for (const input of [undefined, undefined, { text: "other" }, undefined, undefined])
      expect((await again(input)).ended?.case).toBe("completed");
    expect((await elsewhere()).ended?.case).toBe("completed");
    expect((await again()).asked?.permission).toBe("doom_loop");
  });

  test("attaching to a call is no repetition", async () => {
    const agent = connect(service, "caller");
    const call = { sessionId: await agent.newSession(), callId: "c1", tool: "echo", input: { text: "same" } };
    for (let i = 0; i < 5; i += 1) expect((await agent.tools.callTool(call)).part?.state.case).toBe("completed");
  });

  test("a plan says that it would ask, but not for a question about rules alone", async () => {
    const agent = connect(service, "caller");
    const sessionId = await agent.newSession();
    const plan = { sessionId, tool: "echo", input: { text: "again" } };
    const again = looper([agent], sessionId);
    await again();
    expect((await agent.tools.planTool(plan)).action).toBe(Action.ALLOW);
    await again();
    const planned = await agent.tools.planTool(plan);
    expect(planned).toMatchObject({ action: Action.ASK, asks: [{ permission: "doom_loop", patterns: ["echo"] }] });
    expect((await again()).asked?.digest).toBe(planned.asks[0]?.digest);
    expect((await agent.tools.planTool({ ...plan, onlyRules: true })).action).toBe(Action.ALLOW);
  });

  test("an allow of doom_loop lets it go on, a deny ends it", async () => {
    const agent = connect(service, "caller");
    const free = looper([agent], await agent.newSession({ agent: "free" }));
    for (let i = 0; i < 5; i += 1) expect((await free()).ended?.case).toBe("completed");
    const stopped = looper([agent], await agent.newSession({ agent: "stopped" }));
    await stopped();
    await stopped();
    expect((await stopped()).ended?.value).toMatchObject({
      reason: ToolErrorReason.DENIED,
      error: expect.stringContaining('doom_loop "echo" is not allowed'),
    });
  });

  test("always, for this tool in this session, is not asked again; what the call itself asks still is", async () => {
    const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
    const sessionId = await agent.newSession();
    const again = looper([agent], sessionId);
    await again();
    await again();
    const { asked, stream } = await again();
    const answer = { sessionId, permissionId: asked?.id ?? "", reply: PermissionReply.ALWAYS };
    await person.permissions.respondToPermission(answer);
    await stream.end();
    expect((await again()).ended?.case).toBe("completed");
    await writeFile(join(service.workspace, ".env"), "A=1\n");
    const session = { sessionId, tool: "read", input: { filePath: ".env" } };
    for (const callId of ["e1", "e2"]) await agent.tools.callTool({ ...session, callId, waitMs: 0 });
    const { asks } = await agent.tools.planTool(session);
    expect(asks.map(({ permission }) => permission)).toEqual(["read", "doom_loop"]);
  });
});

test("a restart forgets no repetition, and of many calls at once all but two ask", async () => {
  const service = await startService();
  const sessionId = await connect(service, "caller").newSession();
  await looper([connect(service, "caller")], sessionId)();
  await service.kill();
  await service.start();
  const agent = connect(service, "caller");
  const calls = Array.from({ length: 8 }, (_, i) => ({ sessionId, callId: `r${i}`, tool: "echo", waitMs: 0 }));
  await Promise.all(calls.map((call) => agent.tools.callTool({ ...call, input: { text: "again" } })));
  const person = connect(service, "approver");
  const open = read(person.tools.watchSession({ sessionId }));
  const isEither = (name: string) => ["permissionAsked", "completed"].includes(name);
  // The two that need no answer may end after the others have asked.
  for (let seen = 0; seen < 9; seen += 1) await open.find((event) => isEither(nameOf(event)));
  const { parts } = await agent.tools.listToolParts({ sessionId });
  expect(parts.filter(({ state }) => state.case === "completed")).toHaveLength(2);
  expect(parts.filter(({ state }) => state.case === "pending")).toHaveLength(7);
});

describe("on replicas that share a store", () => {
  const replicas = useReplicas();

  test("repetitions count wherever they were made, and the ask is answered anywhere", async () => {
    const [a, b, c] = replicas().all;
    const agents = [a, b, c].map((replica) => connect(replica, "caller"));
    const sessionId = (await agents[0]?.newSession()) ?? "";
    const again = looper(agents, sessionId);
    expect([(await again()).ended?.case, (await again()).ended?.case]).toEqual(["completed", "completed"]);
    const third = await again();
    expect(third.asked).toMatchObject({ permission: "doom_loop", patterns: ["echo"] });
    const planned = await agents[0]?.tools.planTool({ sessionId, tool: "echo", input: { text: "again" } });
    expect(planned?.asks.map(({ permission }) => permission)).toEqual(["doom_loop"]);
    const answer = { sessionId, permissionId: third.asked?.id ?? "", reply: PermissionReply.ONCE };
    await connect(a, "approver").permissions.respondToPermission(answer);
    expect((await third.stream.end()).state.case).toBe("completed");
  });
});
