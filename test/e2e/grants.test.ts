import { randomUUID } from "node:crypto";
import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import {
  GrantScope,
  PermissionAction,
  PermissionLayer,
  PermissionOutcome,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { serve } from "../call/server.ts";
import { type Clients, connect, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({ settings: '[agent.other]\ndescription = "Another one"' });

/** Two clients, and a command that no other test has granted. */
function begin() {
  return {
    agent: connect(service, "caller"),
    person: connect(service, "approver"),
    input: { command: `echo ${randomUUID()}` },
  };
}

type Call = { sessionId: string; agent?: string; input: { command: string } };

/** Calls bash, answers the ask with always in this scope, and returns the grant's id. */
async function grant({ agent, person }: Clientele, call: Call, scope: GrantScope): Promise<string> {
  const { sessionId } = call;
  const stream = read(agent.tools.executeTool({ ...call, callId: randomUUID(), tool: "bash" }));
  const ask = await stream.until("permissionAsked");
  const offerId = ask.offers.find((offer) => offer.scope === scope)?.id ?? "none";
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: Reply.ALWAYS, offerId });
  const settled = await stream.until("permissionSettled");
  expect(settled).toMatchObject({ outcome: PermissionOutcome.ALWAYS, by: "approver" });
  expect((await stream.end()).state.case).toBe("completed");
  return settled.grantId;
}

type Clientele = { agent: Clients; person: Clients };

/** Calls bash again: whether it ran without a question. What asks is cancelled. */
async function runs({ agent }: Clientele, call: Call): Promise<boolean> {
  const callId = randomUUID();
  const stream = read(agent.tools.executeTool({ ...call, callId, tool: "bash" }));
  const { event } = await stream.find(
    ({ event }) => event.case === "permissionAsked" || (event.case === "part" && event.value.state.case === "running"),
  );
  if (event.case === "part") return true;
  await agent.tools.cancelTool({ sessionId: call.sessionId, callId });
  return false;
}

describe.each([
  { name: "session", scope: GrantScope.SESSION, child: true, session: false, agent: false },
  { name: "agent", scope: GrantScope.AGENT, child: true, session: true, agent: false },
  { name: "project", scope: GrantScope.PROJECT, child: true, session: true, agent: true },
])("a grant for the $name", ({ scope, ...serves }) => {
  test("serves equal calls as far as it says and no others, until it is revoked", async () => {
    const { input, ...clients } = begin();
    const sessionId = await clients.agent.newSession();
    const grantId = await grant(clients, { sessionId, input }, scope);
    const child = await clients.agent.newSession({ parentSessionId: sessionId });
    const other = await clients.agent.newSession();
    const plan = await clients.agent.newSession();

    expect(await runs(clients, { sessionId, input })).toBe(true);
    expect(await runs(clients, { sessionId: child, input })).toBe(serves.child);
    expect(await runs(clients, { sessionId: other, input })).toBe(serves.session);
    expect(await runs(clients, { sessionId: plan, agent: "other", input })).toBe(serves.agent);
    expect(await runs(clients, { sessionId, input: { command: `${input.command} more` } })).toBe(false);

    const { grants } = await clients.person.permissions.listGrants({ sessionId });
    expect(grants).toMatchObject([{ id: grantId, scope, permission: "bash", tool: "bash", grantedBy: "approver" }]);
    expect((await clients.person.permissions.revokeGrant({ grantId })).grant?.revoked).toBeGreaterThan(0);
    await clients.person.permissions.revokeGrant({ grantId });
    expect(await runs(clients, { sessionId, input })).toBe(false);
    expect(await runs(clients, { sessionId: other, input })).toBe(false);
    expect((await clients.person.permissions.listGrants({ sessionId })).grants).toEqual([]);
    const dead = await clients.person.permissions.listGrants({ sessionId, includeDead: true });
    expect(dead.grants.map(({ id }) => id)).toContain(grantId);
  });
});

test("always also settles the other open asks that the grant covers, and leaves the rest open", async () => {
  const { input, ...clients } = begin();
  const sessionId = await clients.agent.newSession();
  const same = read(clients.agent.tools.executeTool({ sessionId, callId: "same", tool: "bash", input }));
  const rest = read(
    clients.agent.tools.executeTool({ sessionId, callId: "rest", tool: "bash", input: { command: "echo rest" } }),
  );
  await Promise.all([same.until("permissionAsked"), rest.until("permissionAsked")]);
  const grantId = await grant(clients, { sessionId, input }, GrantScope.SESSION);
  expect(await same.until("permissionSettled")).toMatchObject({ outcome: PermissionOutcome.ALWAYS, grantId });
  expect((await same.end()).state.case).toBe("completed");
  const { permissions } = await clients.agent.permissions.listPermissions({ sessionId });
  expect(permissions.map(({ tool }) => tool?.callId)).toEqual(["rest"]);
});

test("a grant does not beat a deny", async () => {
  const { input, ...clients } = begin();
  await grant(clients, { sessionId: await clients.agent.newSession(), input }, GrantScope.PROJECT);
  const rules = [{ permission: "bash", pattern: "*", action: PermissionAction.DENY }];
  const sessionId = await clients.agent.newSession({ rules });
  const { part } = await clients.agent.tools.callTool({ sessionId, callId: "c1", tool: "bash", input });
  expect(part?.state.value).toMatchObject({ reason: ToolErrorReason.DENIED });
});

test("a plan names the grant that would let the call run", async () => {
  const { input, ...clients } = begin();
  const sessionId = await clients.agent.newSession();
  const grantId = await grant(clients, { sessionId, input }, GrantScope.SESSION);
  const plan = await clients.agent.tools.planTool({ sessionId, tool: "bash", input });
  expect(plan).toMatchObject({ action: PermissionAction.ALLOW, asks: [] });
  expect(plan.decisions).toMatchObject([{ layer: PermissionLayer.GRANT, grantId }]);
});

test("a grant and its end are events of the session; a grant that is not known cannot be revoked", async () => {
  const { input, ...clients } = begin();
  const sessionId = await clients.agent.newSession();
  const log = read(clients.agent.tools.watchSession({ sessionId }));
  const grantId = await grant(clients, { sessionId, input }, GrantScope.SESSION);
  expect((await log.until("granted")).id).toBe(grantId);
  await clients.person.permissions.revokeGrant({ grantId });
  expect((await log.until("revoked")).id).toBe(grantId);
  expect(await refusal(clients.person.permissions.revokeGrant({ grantId: "grt_none" }))).toMatchObject({
    code: Code.NotFound,
    reason: "NO_SUCH_GRANT",
  });
});

test("a grant for what a command begins with covers other operands, and no other option, risk or command", async () => {
  const { agent, person } = begin();
  const sessionId = await agent.newSession();
  const stream = read(
    agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "git log -1" } }),
  );
  const { id: permissionId, offers } = await stream.until("permissionAsked");
  const offer = offers.find(({ match }) => match?.match.case === "prefix");
  expect(offer?.text).toContain('begins with the words "git" "log" (with "-1"; no risk)');
  const offerId = offer?.id ?? "none";
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: Reply.ALWAYS, offerId });
  await stream.end();
  const clients = { agent, person };
  expect(await runs(clients, { sessionId, input: { command: "git log -3 HEAD" } })).toBe(true);
  for (const command of ["git push", "git log --all", "git log; id", "git log $(id)", "git log \u202ex"]) {
    expect(await runs(clients, { sessionId, input: { command } }), command).toBe(false);
  }
  const { grants } = await person.permissions.listGrants({ sessionId });
  expect(grants[0]?.lastUsed).toBeGreaterThan(0);
});

test("always for a dry run does not cover the run that deletes", async () => {
  const clients = begin();
  const sessionId = await clients.agent.newSession();
  const input = { command: "git clean -n" };
  const stream = read(clients.agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input }));
  const { id: permissionId, offers } = await stream.until("permissionAsked");
  const offerId = offers.find(({ match }) => match?.match.case === "prefix")?.id ?? "none";
  await clients.person.permissions.respondToPermission({ sessionId, permissionId, reply: Reply.ALWAYS, offerId });
  await stream.end();
  expect(await runs(clients, { sessionId, input: { command: "git clean -n src" } })).toBe(true);
  expect(await runs(clients, { sessionId, input: { command: "git clean -fdx" } })).toBe(false);
});

test("a program that a pipe feeds to a shell is approved only once: neither offers nor a grant for the shell cover it", async () => {
  const { agent, person } = begin();
  const sessionId = await agent.newSession();
  await grant({ agent, person }, { sessionId, input: { command: "sh" } }, GrantScope.SESSION);
  expect(await runs({ agent, person }, { sessionId, input: { command: "sh" } })).toBe(true);
  const input = { command: "printf 'exit 0' | sh" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "piped", tool: "bash", input }));
  const ask = await stream.until("permissionAsked");
  expect(ask).toMatchObject({ patterns: ["printf 'exit 0'", "sh"], offers: [], always: [] });
  expect(ask.display[1]).toBe(input.command);
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: Reply.ONCE });
  expect((await stream.end()).state.case).toBe("completed");
  expect(await runs({ agent, person }, { sessionId, input })).toBe(false);
});

/** A tool that suggests a pattern. */
const deploy = defineTool({
  name: "deploy",
  version: "1",
  description: "Deploys.",
  input: z.object({ service: z.string() }),
  permissions: ["deploy"],
  plan: ({ service }) => ({
    title: service,
    asks: [{ permission: "deploy", patterns: [`prod/${service}`], always: ["prod/*"] }],
  }),
  execute: async () => ({ output: "deployed" }),
});

test.each([
  ["narrowest", ["prod/api"], { case: "exact", value: "prod/api" }],
  ["tool", ["prod/*"], { case: "wildcard", value: "prod/*" }],
] as const)(
  "a plain always with plain_always = %s saves exactly the patterns that the request named",
  async (plainAlways, always, match) => {
    const { agent, person } = await serve([deploy], { plainAlways });
    const { session } = await agent.sessions.createSession({});
    const sessionId = session?.id ?? "";
    const stream = read(
      agent.tools.executeTool({ sessionId, callId: "c1", tool: "deploy", input: { service: "api" } }),
    );
    const ask = await stream.until("permissionAsked");
    expect(ask.always).toEqual(always);
    await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: Reply.ALWAYS });
    await stream.end();
    const { grants } = await person.permissions.listGrants({});
    expect(grants.map(({ match, scope }) => [scope, match?.match])).toEqual([[GrantScope.SESSION, match]]);
  },
);

test("by default a plain always of a command saves the command as it is", async () => {
  const { agent, input } = begin();
  const [ask] = (await agent.tools.planTool({ tool: "bash", input: { command: "git log --oneline" } })).asks;
  expect(ask?.always).toEqual(["git log --oneline"]);
  expect((await agent.tools.planTool({ tool: "bash", input })).asks[0]?.always).toEqual([input.command]);
});
