import { mkdir, readFile, rename, symlink, truncate, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();
const inWorkspace = (name: string) => join(service.workspace, name);

/** A session whose calls run to their end; each answers with its last state. */
async function begin(agentName = "free") {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession({ agent: agentName });
  let calls = 0;
  const run = async (tool: string, input: Record<string, string>) => {
    const { part } = await agent.tools.callTool({ sessionId, callId: `c${++calls}`, tool, input });
    return part?.state.value;
  };
  return { agent, sessionId, run };
}

test("a file must be read before it is overwritten, and nobody is asked before that", async () => {
  await writeFile(inWorkspace("kept.txt"), "kept\n");
  const { run } = await begin("build");
  expect(await run("write", { filePath: "kept.txt", content: "lost\n" })).toMatchObject({
    reason: ToolErrorReason.FAILED,
    effects: ToolEffects.NONE,
    error: expect.stringContaining("must read"),
  });
  expect(await readFile(inWorkspace("kept.txt"), "utf8")).toBe("kept\n");
});

test("a file that is too large to read is not overwritten, and what is asked about one opens at once", async () => {
  await writeFile(inWorkspace("huge"), "");
  await truncate(inWorkspace("huge"), 2 ** 40);
  const { agent, sessionId, run } = await begin("build");
  expect(await run("write", { filePath: "huge", content: "" })).toMatchObject({
    error: expect.stringContaining("must read"),
  });
  const outside = join(dirname(service.workspace), "huge");
  await rename(inWorkspace("huge"), outside);
  const input = { filePath: outside, content: "" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "outside", tool: "write", input }));
  await stream.until("permissionAsked");
  await agent.tools.cancelTool({ sessionId, callId: "outside" });
});

test("a file that was read is overwritten as approved", async () => {
  await writeFile(inWorkspace("notes.txt"), "milk\n");
  const { agent, sessionId, run } = await begin("build");
  await run("read", { filePath: "notes.txt" });
  const input = { filePath: "notes.txt", content: "milk\nbread\n" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "write", tool: "write", input }));
  const ask = await stream.until("permissionAsked");
  expect(ask.preview?.diff).toContain(" milk\n+bread");
  const person = connect(service, "approver");
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  expect((await stream.end()).state.case).toBe("completed");
  expect(await readFile(inWorkspace("notes.txt"), "utf8")).toBe("milk\nbread\n");
});

test("a file that somebody changed since it was read is not overwritten", async () => {
  await writeFile(inWorkspace("shared.txt"), "first\n");
  const { run } = await begin();
  await run("read", { filePath: "shared.txt" });
  await writeFile(inWorkspace("shared.txt"), "theirs\n");
  expect(await run("write", { filePath: "shared.txt", content: "mine\n" })).toMatchObject({
    reason: ToolErrorReason.FAILED,
    error: expect.stringContaining("modified since"),
  });
  expect(await readFile(inWorkspace("shared.txt"), "utf8")).toBe("theirs\n");
});

test("a file that changes while a person thinks is not overwritten on the strength of the answer", async () => {
  await writeFile(inWorkspace("draft.txt"), "first\n");
  const { agent, sessionId, run } = await begin("build");
  await run("read", { filePath: "draft.txt" });
  const input = { filePath: "draft.txt", content: "mine\n" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "write", tool: "write", input }));
  const ask = await stream.until("permissionAsked");
  await writeFile(inWorkspace("draft.txt"), "theirs\n");
  const person = connect(service, "approver");
  await person.permissions.respondToPermission({ sessionId, permissionId: ask.id, reply: PermissionReply.ONCE });
  const { state } = await stream.end();
  expect(state).toMatchObject({ case: "error", value: { effects: ToolEffects.NONE } });
  expect(await readFile(inWorkspace("draft.txt"), "utf8")).toBe("theirs\n");
});

test("whatever the rules allow, no tool touches the data directory or the configuration", async () => {
  await symlink(service.data, inWorkspace("link"));
  const { run } = await begin();
  const config = service.config;
  const attempts: [string, Record<string, string>][] = [
    ["read", { filePath: service.data }],
    ["read", { filePath: join(service.data, "log", "toolgate.log") }],
    ["read", { filePath: "link/log/toolgate.log" }],
    ["read", { filePath: "../data/log/toolgate.log" }],
    ["read", { filePath: config }],
    ["write", { filePath: join(service.data, "tokens", "approver"), content: "mine" }],
    ["write", { filePath: "link/new", content: "mine" }],
    ["write", { filePath: config, content: "" }],
    ["bash", { command: `cat ${service.data}/log/toolgate.log` }],
    ["bash", { command: "cat ~/data/log/toolgate.log" }],
    ["bash", { command: "cat $HOME/data/log/toolgate.log" }],
    ["bash", { command: "cat ../data/log/toolgate.log" }],
    ["bash", { command: "cat log/toolgate.log", workdir: service.data }],
    ["bash", { command: `sh -c 'echo >> ${config}'` }],
  ];
  for (const [tool, input] of attempts) {
    const { reason, effects } = Object(await run(tool, input));
    expect([input, reason, effects]).toEqual([input, ToolErrorReason.DENIED, ToolEffects.NONE]);
  }
  expect(await readFile(config, "utf8")).toContain("[agent.free.permission]");
});

test("a path outside the workspace asks, also behind a link, and shows nothing before the answer", async () => {
  const outside = join(dirname(service.workspace), "outside");
  await mkdir(outside);
  await writeFile(join(outside, "secret.txt"), "secret\n");
  await symlink(outside, inWorkspace("way-out"));
  const { agent, sessionId } = await begin("build");
  for (const filePath of [join(outside, "secret.txt"), "way-out/secret.txt", "way-out/no-such-file"]) {
    const call = { sessionId, callId: filePath, tool: "read", input: { filePath } };
    const ask = await read(agent.tools.executeTool(call)).until("permissionAsked");
    expect(ask).toMatchObject({ permission: "external_directory", patterns: [`${outside}/*`] });
    expect(ask.preview).toBeUndefined();
  }
});
