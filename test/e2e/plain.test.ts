import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { type ClientReadableStream, credentials, loadPackageDefinition, Metadata } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { expect, test } from "vitest";
import { useService } from "./service.ts";

const service = useService();

test("with fetch and JSON a call asks, is answered, and is attached to until it ends", async () => {
  const { session } = await post("caller", "SessionService/CreateSession", { title: "by fetch" });
  const call = { sessionId: session.id, callId: "c1", tool: "bash", input: { command: "echo hi" } };
  const waiting = post("caller", "ToolService/CallTool", { ...call, waitMs: 20_000 });
  const ask = await askOf(session.id);
  expect(ask).toMatchObject({ permission: "bash", patterns: ["echo hi"], preview: { command: "echo hi" } });
  const answer = { sessionId: session.id, permissionId: ask.id, reply: "PERMISSION_REPLY_ONCE" };
  expect(await post("approver", "PermissionService/RespondToPermission", answer)).toEqual({});
  const { part } = await waiting;
  expect(part).toMatchObject({ callId: "c1", type: "tool", completed: { status: "completed", output: "hi\n" } });
  const again = await post("caller", "ToolService/CallTool", call);
  expect(again.part).toEqual(part);
});

test("with fetch an error has its code, its reason and its fields in JSON", async () => {
  const response = await request("caller", "ToolService/CallTool", { callId: "no {braces}", tool: "echo" });
  expect(response.status).toBe(400);
  expect(response.body).toMatchObject({
    code: "invalid_argument",
    details: [
      {
        type: "google.rpc.ErrorInfo",
        debug: { reason: "INVALID_MESSAGE", domain: "opencode.tool.v1", metadata: { field: "call_id" } },
      },
      { type: "buf.validate.Violations" },
    ],
  });
  expect(await request("nobody", "ToolService/CallTool", { tool: "echo" })).toMatchObject({
    status: 401,
    body: { code: "unauthenticated", details: [{ debug: { reason: "UNAUTHENTICATED" } }] },
  });
});

test("buf curl learns the contract by reflection, calls, answers and sees errors with their details", async () => {
  const { session } = await curl("caller", "SessionService/CreateSession", {});
  const call = { sessionId: session.id, callId: "c1", tool: "bash", input: { command: "echo curled" } };
  const { part } = await curl("caller", "ToolService/CallTool", { ...call, waitMs: 0 });
  expect(part.pending.input).toEqual(call.input);
  const ask = await askOf(session.id);
  const answer = { sessionId: session.id, permissionId: ask.id, reply: "PERMISSION_REPLY_ONCE" };
  await curl("approver", "PermissionService/RespondToPermission", answer);
  expect((await curl("caller", "ToolService/CallTool", call)).part.completed.output).toBe("curled\n");
  await expect(curl("approver", "ToolService/CallTool", call)).rejects.toMatchObject({
    stderr: expect.stringMatching(/permission_denied[\s\S]*google\.rpc\.ErrorInfo/),
  });
});

test("grpc-js needs the .proto files and nothing of ours", async () => {
  const definition = loadSync(
    ["tool", "permission"].map((name) => `opencode/tool/v1/${name}_service.proto`),
    {
      includeDirs: ["proto"],
      enums: String,
      oneofs: true,
    },
  );
  // grpc-js types what it loads at run time as a tree of unknowns.
  const { opencode } = loadPackageDefinition(definition) as unknown as Loaded;
  const connection = [new URL(service.url).host, credentials.createInsecure()] as const;
  const tools = new opencode.tool.v1.ToolService(...connection);
  const permissions = new opencode.tool.v1.PermissionService(...connection);
  const { session } = await post("caller", "SessionService/CreateSession", {});
  const input = { fields: { command: { stringValue: "echo native" } } };
  const stream = tools.executeTool({ sessionId: session.id, callId: "c1", tool: "bash", input }, bearer("caller"));
  const states: (string | undefined)[] = [];
  const { promise: answered, resolve } = Promise.withResolvers<string>();
  for await (const { event } of stream) {
    if (event?.event === "part") states.push(event.part?.state);
    if (event?.event !== "permissionAsked") continue;
    const answer = { sessionId: session.id, permissionId: event.permissionAsked?.id, reply: "PERMISSION_REPLY_ONCE" };
    permissions.respondToPermission(answer, bearer("approver"), (error) => resolve(error?.message ?? "answered"));
  }
  expect(await answered).toBe("answered");
  expect(states).toEqual(["pending", "running", "completed"]);
  tools.close();
  permissions.close();
});

interface Loaded {
  opencode: { tool: { v1: Record<"ToolService" | "PermissionService", new (...to: readonly unknown[]) => Native> } };
}

interface Native {
  executeTool(request: object, metadata: Metadata): ClientReadableStream<NativeMessage>;
  respondToPermission(request: object, metadata: Metadata, done: (error: Error | null) => void): void;
  close(): void;
}

interface NativeMessage {
  event?: { event?: string; part?: { state?: string }; permissionAsked?: { id: string } };
}

function bearer(who: string): Metadata {
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${who}-token-for-tests`);
  return metadata;
}

/** The first ask of a session, as soon as there is one. */
async function askOf(sessionId: string) {
  for (;;) {
    const { permissions } = await post("approver", "PermissionService/ListPermissions", { sessionId });
    if (permissions !== undefined) return permissions[0];
  }
}

/** JSON of a type that a script does not know. */
type Json = ReturnType<typeof JSON.parse>;

async function request(who: string, rpc: string, message: object): Promise<{ status: number; body: Json }> {
  const response = await fetch(`${service.url}/opencode.tool.v1.${rpc}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${who}-token-for-tests` },
    body: JSON.stringify(message),
  });
  return { status: response.status, body: await response.json() };
}

async function post(who: string, rpc: string, message: object): Promise<Json> {
  const { status, body } = await request(who, rpc, message);
  if (status !== 200) throw new Error(`${rpc}: ${status} ${JSON.stringify(body)}`);
  return body;
}

async function curl(who: string, rpc: string, message: object): Promise<Json> {
  const { stdout } = await promisify(execFile)("npx", [
    ...["buf", "curl", "--http2-prior-knowledge", "--protocol", "grpc"],
    ...["-H", `authorization: Bearer ${who}-token-for-tests`, "-d", JSON.stringify(message)],
    `${service.url}/opencode.tool.v1.${rpc}`,
  ]);
  return JSON.parse(stdout);
}
