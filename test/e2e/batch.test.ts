import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

async function begin() {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  const partOf = async (callId: string) => (await agent.tools.getToolPart({ sessionId, callId })).part;
  return { agent, person, sessionId, partOf };
}

const shell = (command: string) => ({ tool: "bash", args: { command } });
const stateOf = (part: ToolPart | undefined) => part?.state.value;

test("a batch makes calls of their own, which fail on their own", async () => {
  const { agent, sessionId, partOf } = await begin();
  await writeFile(join(service.workspace, "a.txt"), "hello\n");
  const tools = [
    { tool: "read", args: { filePath: "a.txt" } },
    { tool: "ehco", args: { text: "x" } },
    { tool: "echo", args: { text: "y" } },
  ];
  const call = { sessionId, callId: "c1", tool: "batch", input: { tools } };
  const { part } = await agent.tools.callTool(call);
  expect(stateOf(part)).toMatchObject({
    output: expect.stringMatching(
      /^Executed 2\/3 tools successfully\. 1 failed\.\n\n[\s\S]*1: hello[\s\S]*Did you mean "echo"\?/,
    ),
    metadata: { failed: 1, calls: [{ callId: "c1.1", tool: "read", status: "completed" }, { status: "error" }, {}] },
  });
  expect(stateOf(await partOf("c1.3"))).toMatchObject({ output: "y" });
  expect(stateOf(await partOf("c1.2"))).toMatchObject({ reason: ToolErrorReason.UNKNOWN_TOOL });
  expect((await partOf("c1.1"))?.metadata).toMatchObject({ parentCallId: "c1" });
});

test("a batch is described by the ordered names, and takes opencode's later ones", async () => {
  const { agent, sessionId } = await begin();
  const { tools } = await agent.tools.listTools({});
  expect(tools.find(({ name }) => name === "batch")?.inputSchema).toMatchObject({
    type: "object",
    properties: { tools: { items: { properties: { tool: {}, args: {} }, required: ["tool"] } } },
    required: ["tools"],
  });
  const input = { tool_calls: [{ tool: "echo", parameters: { text: "later" } }] };
  const { part } = await agent.tools.callTool({ sessionId, callId: "c1", tool: "batch", input });
  expect(stateOf(part)).toMatchObject({ output: expect.stringContaining("later"), metadata: { failed: 0 } });
});

test("a batch passes on the files that its calls return, small ones inline as far as they fit", async () => {
  const { agent, sessionId, partOf } = await begin();
  const png = Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), Buffer.alloc(60_000, 1)]);
  const large = Buffer.concat([png, Buffer.alloc(60_000, 2)]);
  await writeFile(join(service.workspace, "large.png"), large);
  const names = ["large.png", ...Array.from({ length: 9 }, (_, i) => `${i}.png`)];
  for (const name of names.slice(1)) await writeFile(join(service.workspace, name), png);
  const tools = names.map((filePath) => ({ tool: "read", args: { filePath } }));
  const { part } = await agent.tools.callTool({ sessionId, callId: "c1", tool: "batch", input: { tools } });
  const { state } = part ?? {};
  const files = state?.case === "completed" ? state.value.attachments : [];
  expect(files.map(({ filename }) => filename)).toEqual(names);
  const [first] = files;
  const own = await partOf("c1.1");
  expect(own?.state.case === "completed" && own.state.value.attachments[0]?.url).toBe(first?.url);
  expect(files.filter(({ url }) => url.startsWith("data:"))).toHaveLength(4);
  for (const { url, filename } of files) {
    const data = url.startsWith("data:")
      ? Buffer.from(url.split(",")[1] ?? "", "base64")
      : Buffer.from((await agent.tools.readToolOutput({ sessionId, output: url })).data);
    expect(data.equals(filename === "large.png" ? large : png)).toBe(true);
  }
});

test("of an atomic batch nothing starts before all of it is allowed", async () => {
  const { agent, person, sessionId, partOf } = await begin();
  const input = {
    tools: [shell("touch one"), shell("touch two"), { tool: "echo", args: { text: "z" } }],
    atomic: true,
  };
  const stream = read(agent.tools.watchSession({ sessionId }));
  const running = agent.tools.callTool({ sessionId, callId: "c1", tool: "batch", input });
  const [first, second] = [await stream.until("permissionAsked"), await stream.until("permissionAsked")];
  await person.permissions.respondToPermission({ sessionId, permissionId: first.id, reply: PermissionReply.ONCE });
  await stream.until("permissionSettled");
  for (const number of [1, 2, 3]) expect((await partOf(`c1.${number}`))?.state.case).toBe("pending");
  await person.permissions.respondToPermission({ sessionId, permissionId: second.id, reply: PermissionReply.ONCE });
  expect(stateOf((await running).part)).toMatchObject({ output: expect.stringContaining("All 3 tools executed") });
  expect(await readdir(service.workspace)).toEqual(expect.arrayContaining(["one", "two"]));
});

test.each([
  ["a person rejects", { reply: PermissionReply.REJECT }, shell("touch never-2"), ToolErrorReason.REJECTED],
  ["cannot be decoded", undefined, { tool: "read", args: {} }, ToolErrorReason.INVALID_INPUT],
])("of an atomic batch with a call that %s nothing is run", async (_, answer, other, reason) => {
  const { agent, person, sessionId, partOf } = await begin();
  const input = {
    tools: [shell("touch never"), other, { tool: "echo", args: { text: "z" } }],
    atomic: true,
  };
  const stream = read(agent.tools.watchSession({ sessionId }));
  const running = agent.tools.callTool({ sessionId, callId: "c1", tool: "batch", input });
  if (answer) {
    const asks = [await stream.until("permissionAsked"), await stream.until("permissionAsked")];
    const rejected = asks.find(({ tool }) => tool?.callId === "c1.2");
    await person.permissions.respondToPermission({ sessionId, permissionId: rejected?.id ?? "", ...answer });
  }
  expect(stateOf((await running).part)).toMatchObject({ metadata: { failed: 3 } });
  expect(stateOf(await partOf("c1.2"))).toMatchObject({ reason });
  for (const number of [1, 3]) {
    expect(stateOf(await partOf(`c1.${number}`))).toMatchObject({
      reason: ToolErrorReason.CANCELLED,
      effects: ToolEffects.NONE,
      error: expect.stringContaining("Nothing was run, because call c1.2"),
    });
  }
  expect((await readdir(service.workspace)).filter((name) => name.startsWith("never"))).toEqual([]);
  await expect(readFile(join(service.workspace, "never"))).rejects.toThrow("ENOENT");
});

test("a batch that is cancelled takes its calls along", async () => {
  const { agent, sessionId, partOf } = await begin();
  const input = { tools: [shell("echo started; sleep 600"), shell("sleep 600")] };
  const stream = read(agent.tools.watchSession({ sessionId }));
  const running = agent.tools.callTool({ sessionId, callId: "c1", agent: "free", tool: "batch", input });
  await stream.until("output");
  await agent.tools.cancelTool({ sessionId, callId: "c1" });
  expect(stateOf((await running).part)).toMatchObject({ reason: ToolErrorReason.CANCELLED });
  const left = new Set(["c1.1", "c1.2"]);
  while (left.size > 0) {
    const { event } = await stream.find(({ event }) => event.case === "part" && event.value.state.case === "error");
    if (event.case === "part") left.delete(event.value.callId);
  }
  expect(stateOf(await partOf("c1.1"))).toMatchObject({ reason: ToolErrorReason.CANCELLED });
});

test("a batch in a batch is refused, and so are more than 25 calls", async () => {
  const { agent, sessionId } = await begin();
  const echo = { tool: "echo", args: { text: "x" } };
  for (const [index, tools] of [[{ tool: "batch" }], Array.from({ length: 26 }, () => echo), []].entries()) {
    const { part } = await agent.tools.callTool({
      sessionId,
      callId: `c${index}`,
      tool: "batch",
      input: { tools },
    });
    expect(stateOf(part)).toMatchObject({ reason: ToolErrorReason.INVALID_INPUT });
  }
});

test("a broken call is answered with what was wrong and the nearest tool, those of files among them", async () => {
  const { agent, sessionId } = await begin();
  const input = { tool: "Reed", error: "filePath: expected string" };
  const { part } = await agent.tools.callTool({ sessionId, callId: "c1", tool: "invalid", input });
  expect(stateOf(part)).toMatchObject({
    output: `The arguments provided to the tool are invalid: filePath: expected string\nThere is no tool "Reed"; the nearest is "read".`,
  });
  const folder = join(dirname(service.config), "tool");
  await mkdir(folder);
  await writeFile(
    join(folder, "greet.js"),
    `export default { description: "Greet.", args: {}, execute: () => "hello" };`,
  );
  expect((await agent.tools.listTools({})).tools.map(({ name }) => name)).toContain("greet");
  for (const [callId, tool, hint] of [
    ["c2", "greet", "is no JSON"],
    ["c3", "greeet", `is no JSON\nThere is no tool "greeet"; the nearest is "greet".`],
  ] as const) {
    const call = { sessionId, callId, tool: "invalid", input: { tool, error: "is no JSON" } };
    expect(stateOf((await agent.tools.callTool(call)).part)).toMatchObject({
      output: `The arguments provided to the tool are invalid: ${hint}`,
    });
  }
});
