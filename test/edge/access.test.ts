import { once } from "node:events";
import { connect } from "node:net";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { OperatorService } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { SourceService } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { WorkerService } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { createAccessGate, createAuthenticate, rolesFor } from "../../src/edge/api/access.ts";
import { clientOf, refusal } from "../e2e/clients.ts";
import { roles, startServer } from "./server.ts";

/** Roles that may call each rpc: c caller, a approver, w watcher, A admin, h host, r relay. */
const pinned: Record<string, string> = {
  "AgentService/RegisterConnector": "-a-A--",
  "AgentService/UnregisterConnector": "-a-A--",
  "AgentService/ListConnectors": "-awA--",
  "AgentService/ListAgents": "cawAh-",
  "AgentService/RunAgents": "c--A--",
  "ChannelService/ListChannels": "-a-A--",
  "ChannelService/ListNotices": "-a-A--",
  "ChannelService/TestChannel": "---A--",
  "ChannelService/Subscribe": "-a-A--",
  "ChannelService/Unsubscribe": "-a-A--",
  "OperatorService/Backup": "---A--",
  "OperatorService/Stop": "-a-A--",
  "OperatorService/ListStops": "-awA--",
  "OperatorService/Resume": "-a-A--",
  "WorkerService/Work": "------",
  "WorkerService/ListWorkers": "-awA--",
  "SourceService/ListSources": "-awA--",
  "SourceService/AcceptSource": "-a-A--",
  "CredentialService/SignIn": "cawAhr",
  "CredentialService/ListSignInProviders": "cawAhr",
  "CredentialService/BeginSignIn": "cawAhr",
  "CredentialService/FinishSignIn": "cawAhr",
  "CredentialService/CreateCode": "-a-A--",
  "CredentialService/CreateToken": "-a-A--",
  "CredentialService/ListCredentials": "-a-A--",
  "CredentialService/RevokeCredential": "-a-A--",
  "PersonService/ListPeople": "-a-A--",
  "PersonService/RenamePerson": "-a-A--",
  "PersonService/RevokePerson": "-a-A--",
  "PersonService/LinkAccount": "-a-A--",
  "PersonService/UnlinkAccount": "-a-A--",
  "PersonService/BeginPasskey": "-a-A--",
  "PersonService/FinishPasskey": "-a-A--",
  "PersonService/RemovePasskey": "-a-A--",
  "PersonService/PutDelegate": "-a-A--",
  "PersonService/RemoveDelegate": "-a-A--",
  "PermissionService/RespondToPermission": "-a-A-r",
  "PermissionService/BeginStepUp": "-a-A--",
  "PermissionService/RejectPermissions": "-a-A--",
  "PermissionService/GetPermission": "cawAh-",
  "PermissionService/ReadBoundFile": "-awA--",
  "PermissionService/ListPermissions": "cawAh-",
  "PermissionService/WatchPermissions": "cawAh-",
  "PermissionService/ListGrants": "-awA--",
  "PermissionService/RevokeGrant": "-a-A--",
  "PermissionService/ConfirmGrant": "-a-A--",
  "PermissionService/ListAudits": "-awA--",
  "PermissionService/ListDecisions": "cawAh-",
  "PermissionService/ExplainPermission": "cawA--",
  "PermissionService/ListRules": "-awA--",
  "PermissionService/SimulatePolicy": "-awA--",
  "PermissionService/SuggestRules": "-awA--",
  "PermissionService/GetAttention": "-awA--",
  "ToolService/ListTools": "cawAh-",
  "ToolService/GetTool": "cawAh-",
  "ToolService/PlanTool": "ca-A--",
  "ToolService/CallTool": "c--A--",
  "ToolService/ExecuteTool": "c--A--",
  "ToolService/StreamTools": "c--A--",
  "ToolService/BeginCall": "---Ah-",
  "ToolService/FinishCall": "---Ah-",
  "ToolService/CancelTool": "c--A--",
  "ToolService/GetToolPart": "cawAh-",
  "ToolService/ListToolParts": "cawAh-",
  "ToolService/ReadToolOutput": "cawAh-",
  "ToolService/WatchSession": "cawAh-",
  "ToolService/WatchMany": "cawAh-",
  "ToolService/GetToolStats": "-awA--",
  "ToolService/GetServerInfo": "cawAh-",
  "SessionService/CreateSession": "c--A--",
  "SessionService/GetSession": "cawAh-",
  "SessionService/ListSessions": "cawAh-",
  "SessionService/CloseSession": "c--A--",
};

const rpcs = [
  AgentService,
  OperatorService,
  SourceService,
  CredentialService,
  ChannelService,
  PersonService,
  PermissionService,
  ToolService,
  SessionService,
  WorkerService,
].flatMap((service) => service.methods.map((method) => ({ path: `${method.parent.name}/${method.name}`, method })));

test("the table lists every rpc and no others", () => {
  expect(rpcs.map(({ path }) => path).toSorted()).toEqual(Object.keys(pinned).toSorted());
});

test("each role may call exactly the rpcs of the table, over the wire", async () => {
  const server = await startServer({});
  for (const { path, method } of rpcs) {
    const allowed = await Promise.all(
      roles.map(async (role) => {
        // Over HTTP/1.1 it is refused before its token is read.
        if (method.methodKind === "bidi_streaming") return !(await isRoleMissing(server, role, path));
        const json = method.methodKind === "unary" ? "application/json" : "application/connect+json";
        const response = await fetch(`${server.url}/opencode.tool.v1.${path}`, {
          method: "POST",
          headers: { "content-type": json, authorization: `Bearer ${role}-token` },
          body: method.methodKind === "unary" ? "{}" : Buffer.from([0, 0, 0, 0, 2, 0x7b, 0x7d]),
        });
        return !(await response.text()).includes("ROLE_MISSING");
      }),
    );
    expect(`${path} ${["c", "a", "w", "A", "h", "r"].map((letter, i) => (allowed[i] ? letter : "-")).join("")}`).toBe(
      `${path} ${pinned[path]}`,
    );
  }
});

/** Returns true if RunAgents or Work, over HTTP/2, refuses the role. */
async function isRoleMissing({ url }: { url: string }, role: string, path: string): Promise<boolean> {
  const nothing = (async function* () {})();
  const stream: AsyncIterable<unknown> = path.startsWith("Worker")
    ? clientOf(WorkerService, url, `${role}-token`).work(nothing)
    : clientOf(AgentService, url, `${role}-token`).runAgents(nothing);
  return (await refusal(Array.fromAsync(stream))).reason === "ROLE_MISSING";
}

test("an rpc that is not in the table is open to no role", () => {
  const unlisted = { ...ToolService.method.listTools, localName: "burnTools" };
  expect(rolesFor(unlisted)).toEqual([]);
  expect(rolesFor({ ...unlisted, localName: "constructor" })).toEqual([]);
});

test("the metrics need a role that covers all callers, and a refusal names the reason", async () => {
  const server = await startServer();
  const asked = async (token?: string) => {
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const response = await fetch(`${server.url}/metrics`, { headers });
    return { status: response.status, type: response.headers.get("content-type"), body: await response.text() };
  };
  for (const role of ["approver", "watcher", "admin"]) {
    expect(await asked(`${role}-token`)).toEqual({
      status: 200,
      type: "text/plain; version=0.0.4; charset=utf-8",
      body: expect.stringMatching(/^metrics\n/),
    });
  }
  expect(await asked("caller-token")).toMatchObject({ status: 403, body: expect.stringContaining("ROLE_MISSING") });
  expect(await asked()).toMatchObject({ status: 401, body: expect.stringContaining("authorization: Bearer TOKEN") });
});

test("a missing role is permission_denied and names the sufficient roles", async () => {
  const server = await startServer();
  const error = await failure(server.url, "Bearer approver-token", (client) => client.callTool({ tool: "bash" }));
  expect(error.code).toBe(Code.PermissionDenied);
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([
    {
      reason: "ROLE_MISSING",
      domain: "opencode.tool.v1",
      metadata: { rpc: "opencode.tool.v1.ToolService/CallTool", roles: "caller,admin" },
    },
  ]);
});

for (const [name, authorization] of [
  ["no token", undefined],
  ["an unknown token", "Bearer caller-tokem"],
  ["another scheme", "Basic caller-token"],
  ["an empty token", "Bearer "],
] as const) {
  test(`${name} is unauthenticated`, async () => {
    const server = await startServer();
    const error = await failure(server.url, authorization, (client) => client.getServerInfo({}));
    expect(error.code).toBe(Code.Unauthenticated);
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "UNAUTHENTICATED" }]);
  });
}

test("a request without a token is refused before its body arrives", async () => {
  const server = await startServer();
  const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
  socket.write(
    "POST /opencode.tool.v1.ToolService/CallTool HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n",
  );
  const [answer] = await once(socket, "data");
  expect(String(answer)).toContain("401 Unauthorized");
  socket.destroy();
});

test("without authentication every client is one principal with all roles", async () => {
  const server = await startServer({}, { config: { insecureNoAuth: true, tokens: [] } });
  const client = createClient(ToolService, createConnectTransport({ baseUrl: server.url, httpVersion: "1.1" }));
  expect(await client.getServerInfo({})).toMatchObject({
    principal: "anonymous",
    roles: ["caller", "approver", "watcher", "admin"],
  });
});

test("a request that arrives while the server drains is refused with the reason, whatever its token", () => {
  const gate = createAccessGate(
    createAuthenticate({
      config: { insecureNoAuth: true },
      credentials: { principalOf: () => undefined },
      browser: { cookieName: () => "toolgate" },
    }),
  );
  const draining = new Error("draining");
  const rpc = ToolService.method.listTools;
  expect(() => gate({ rpc, headers: new Headers(), signal: AbortSignal.abort(draining) })).toThrow(draining);
});

async function failure(
  baseUrl: string,
  authorization: string | undefined,
  call: (client: ReturnType<typeof createClient<typeof ToolService>>) => Promise<unknown>,
): Promise<ConnectError> {
  const transport = createConnectTransport({
    baseUrl,
    httpVersion: "1.1",
    interceptors: [
      (next) => (request) => {
        if (authorization !== undefined) request.header.set("authorization", authorization);
        return next(request);
      },
    ],
  });
  return ConnectError.from(
    await call(createClient(ToolService, transport)).then(
      () => "it passed",
      (error) => error,
    ),
  );
}
