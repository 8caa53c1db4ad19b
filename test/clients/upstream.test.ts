import { type ChildProcess, spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { SourceService, SourceState } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { clientOf, connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { createService } from "../e2e/service.ts";
import { inModules } from "./mcp-programs.ts";

/** Holds the servers and the Node that runs them. */
const root = join(import.meta.dirname, "../..");
/** It offers the reference servers of the protocol's authors, over stdio, and one of them over both forms of HTTP. */
const service = createService();
const overHttp: ChildProcess[] = [];
const sources = () => clientOf(SourceService, service.url, "approver-token-for-tests");

beforeAll(async () => {
  const [port, olderPort] = [await startOverHttp("streamableHttp"), await startOverHttp("sse")];
  await service.start();
  await writeFile(join(service.workspace, "note.txt"), "a note\n");
  const program = (name: string, path: string, args: readonly string[] = []) => `[mcp.${name}]
command = ${JSON.stringify(process.execPath)}
args = ${JSON.stringify([inModules(path), ...args])}
folders = ${JSON.stringify([service.workspace, root])}
trusted = true
`;
  await service.stop();
  await service.configure(
    [
      program("every", "server-everything/dist/index.js", ["stdio"]),
      program("files", "server-filesystem/dist/index.js", [service.workspace, "/etc"]),
      program("memory", "server-memory/dist/index.js"),
      `[mcp.remote]\nurl = "http://127.0.0.1:${port}/mcp"\n`,
      `[mcp.older]\nurl = "http://127.0.0.1:${olderPort}/sse"\n`,
    ].join("\n"),
  );
  await service.start();
  for (const name of ["every", "files", "memory", "remote", "older"]) await accept(name);
});
afterAll(async () => {
  await service.close();
  for (const server of overHttp) server.kill();
});

/** Starts server-everything on a port, and returns that. */
async function startOverHttp(transport: "streamableHttp" | "sse"): Promise<number> {
  const port = await freePort();
  const everything = inModules("server-everything/dist/index.js");
  overHttp.push(spawn(process.execPath, [everything, transport], { env: { PORT: String(port) }, stdio: "ignore" }));
  return port;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function accept(name: string): Promise<void> {
  const find = async () => (await sources().listSources({})).sources.find((source) => source.name === name);
  await vi.waitFor(async () => expect(await find()).toMatchObject({ state: SourceState.READY, problem: "" }), {
    timeout: 30_000,
  });
  await sources().acceptSource({ name, digest: (await find())?.digest ?? "" });
}

async function call(tool: string, input: object = {}) {
  const { part } = await connect(service, "caller").tools.callTool({ tool, input: input as never, agent: "free" });
  return part?.state.value as unknown as { output: string; error: string; reason: ToolErrorReason };
}

test.each(["every", "remote", "older"])(
  "server-everything as %s echoes, adds, and returns a picture and a structure",
  async (name) => {
    expect(await call(`${name}_echo`, { message: "hi" })).toMatchObject({ output: "Echo: hi" });
    expect((await call(`${name}_get-sum`, { a: 2, b: 3 })).output).toContain("5");
    expect(await call(`${name}_get-tiny-image`)).toMatchObject({ attachments: [{ mime: "image/png" }] });
    expect(await call(`${name}_get-structured-content`, { location: "Chicago" })).toMatchObject({
      structuredOutput: { kind: { case: "structValue" } },
    });
    const links = await call(`${name}_get-resource-links`, { count: 1 });
    const uri = JSON.parse(/\[resource ("[^"]+")/.exec(links.output)?.[1] ?? "null");
    expect(await call(`${name}_read_resource`, { uri })).toMatchObject({ attachments: [{}] });
  },
);

test("a question of server-everything is answered by a person", async () => {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const tool = "every_trigger-elicitation-request";
  const stream = read(tools.executeTool({ sessionId, callId: "c1", tool, input: {}, agent: "free" }));
  // Its form has more fields than one request has questions.
  for (const isFirst of [true, false]) {
    const { id, digest, question } = await stream.until("permissionAsked");
    if (isFirst) expect(question[0]?.question).toContain("The MCP server every asks:");
    const answers = question.map(({ options, custom }) => ({ values: custom ? ["7"] : [options[0]?.label ?? ""] }));
    const reply = { reply: PermissionReply.ONCE, expectedDigest: digest, answers };
    await connect(service, "approver").permissions.respondToPermission({ sessionId, permissionId: id, ...reply });
  }
  expect((await stream.end()).state).toMatchObject({
    case: "completed",
    value: { output: expect.stringContaining("7") },
  });
});

test("server-filesystem works in its folder and sees nothing beyond it, whatever it allows itself", async () => {
  const path = join(service.workspace, "note.txt");
  expect((await call("files_read_text_file", { path })).output).toContain("a note");
  await call("files_write_file", { path: join(service.workspace, "new.txt"), content: "written\n" });
  expect(await readFile(join(service.workspace, "new.txt"), "utf8")).toBe("written\n");
  expect(await call("files_write_file", { path: "/etc/toolgate-test", content: "x" })).toMatchObject({
    reason: ToolErrorReason.FAILED,
  });
});

test("server-memory remembers across calls", async () => {
  const entities = [{ name: "ann", entityType: "person", observations: ["likes tea"] }];
  await call("memory_create_entities", { entities });
  expect((await call("memory_read_graph")).output).toContain("likes tea");
});
