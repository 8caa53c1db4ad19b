import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
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
  // A name that is not known may be that of a tool that changes something.
  const call = { sessionId, callId: "c1", tool: "batch", input: { tools, atomic: false } };
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

test("a batch is atomic if a call of it may change something, unless it says otherwise", async () => {
  const { agent } = await begin();
  const look = { tool: "read", args: { filePath: "a.txt" } };
  const isAtomic = async (input: JsonObject) => {
    const { title } = await agent.tools.planTool({ tool: "batch", input });
    return title.includes(", atomic");
  };
  expect(await isAtomic({ tools: [look, shell("ls")] })).toBe(true);
  expect(await isAtomic({ tools: [look, { tool: "own_tool", args: {} }] })).toBe(true);
  expect(await isAtomic({ tools: [look, shell("ls")], atomic: false })).toBe(false);
  expect(await isAtomic({ tools: [look, { tool: "webfetch", args: {} }, { tool: "lsp_hover", args: {} }] })).toBe(
    false,
  );
});

test("of a batch that may change something nothing starts before all of it is allowed", async () => {
  const { agent, person, sessionId, partOf } = await begin();
  const input = {
    tools: [shell("touch one"), shell("touch two"), { tool: "echo", args: { text: "z" } }],
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

describe("an atomic batch of which a call fails", () => {
  const write = (filePath: string, content: string) => ({ tool: "write", args: { filePath, content } });

  /** Creates files that the session has read, and returns what runs an atomic batch of the agent that may do everything. */
  async function withFiles(files: Record<string, string>) {
    const { agent, sessionId, partOf } = await begin();
    const pathOf = (name: string) => join(service.workspace, name);
    const contentOf = (name: string) => readFile(pathOf(name), "utf8").catch(() => undefined);
    for (const [name, content] of Object.entries(files)) {
      await writeFile(pathOf(name), content);
      await agent.tools.callTool({ sessionId, tool: "read", input: { filePath: name } });
    }
    const run = async (tools: JsonObject[], options: { callId?: string } = {}) => {
      const call = {
        sessionId,
        callId: "c1",
        agent: "free",
        tool: "batch",
        input: { tools, atomic: true },
        ...options,
      };
      return (await agent.tools.callTool(call)).part;
    };
    return { agent, sessionId, partOf, pathOf, contentOf, run };
  }

  test("restores what its files held, and names what ran and what cannot be taken back", async () => {
    const { partOf, pathOf, contentOf, run } = await withFiles({ "old.txt": "before\n", "moved.txt": "m\n" });
    const patchText =
      "*** Begin Patch\n*** Update File: moved.txt\n*** Move to: elsewhere.txt\n@@\n-m\n+n\n*** End Patch";
    const part = await run([
      write("old.txt", "after\n"),
      write("new/deep.txt", "made\n"),
      { tool: "apply_patch", args: { patchText } },
      shell("exit 3"),
      { tool: "echo", args: { text: "x" } },
    ]);
    const restored = new Set(["old.txt", "new/deep.txt", "moved.txt", "elsewhere.txt"].map(pathOf));
    expect(stateOf(part)).toMatchObject({
      reason: ToolErrorReason.FAILED,
      effects: ToolEffects.UNKNOWN,
      metadata: {
        failed: 1,
        calls: [{}, {}, {}, { callId: "c1.4", tool: "bash", commandFailure: "exit code 3" }, {}],
        // The calls run at the same time: their files have no order.
        restored: expect.toSatisfy((paths: string[]) => isDeepStrictEqual(new Set(paths), restored)),
        notRestored: [],
        cannotBeTakenBack: [{ callId: "c1.4", tool: "bash" }],
      },
    });
    const error = part?.state.case === "error" ? part.state.value.error : "";
    expect(error).toContain("The atomic batch failed: c1.4 (bash) ended with exit code 3.");
    expect(error).toContain("Ran: c1.1 (write), c1.2 (write), c1.3 (apply_patch), c1.4 (bash), c1.5 (echo).");
    expect(error).toContain("Cannot be taken back: c1.4 (bash).");
    expect(await contentOf("old.txt")).toBe("before\n");
    expect(await contentOf("new/deep.txt")).toBeUndefined();
    expect(await contentOf("moved.txt")).toBe("m\n");
    expect(await contentOf("elsewhere.txt")).toBeUndefined();
    expect((await partOf("c1.1"))?.state.case).toBe("completed");
    // The session knows the restored content, so that the same change works again.
    expect(stateOf(await run([write("old.txt", "again\n")], { callId: "c2" }))).toMatchObject({
      output: expect.stringContaining("All 1 tools executed successfully."),
    });
    expect(await contentOf("old.txt")).toBe("again\n");
  });

  test("has had no effects if all that it changed is restored", async () => {
    const { pathOf, contentOf, run } = await withFiles({ "one.txt": "1\n" });
    const beyond = { tool: "read", args: { filePath: "one.txt", offset: 99 } };
    expect(stateOf(await run([write("one.txt", "2\n"), beyond]))).toMatchObject({
      effects: ToolEffects.NONE,
      metadata: { failed: 1, restored: [pathOf("one.txt")], notRestored: [], cannotBeTakenBack: [] },
    });
    expect(await contentOf("one.txt")).toBe("1\n");
  });

  test("runs nothing if a call is found to fail before the start", async () => {
    const { contentOf, run } = await withFiles({ "one.txt": "1\n" });
    const part = await run([write("one.txt", "2\n"), { tool: "read", args: { filePath: "missing.txt" } }]);
    expect(stateOf(part)).toMatchObject({
      effects: ToolEffects.NONE,
      error: expect.stringContaining("nothing was run: "),
      metadata: { failed: 2, restored: [] },
    });
    expect(await contentOf("one.txt")).toBe("1\n");
  });

  test("leaves a file alone that does not hold what the batch wrote", async () => {
    const { pathOf, contentOf, run } = await withFiles({ "shared.txt": "before\n" });
    const addLine = "until grep -q after shared.txt; do sleep 0.02; done; echo mine >> shared.txt; exit 1";
    const part = await run([write("shared.txt", "after\n"), shell(addLine)]);
    expect(stateOf(part)).toMatchObject({
      error: expect.stringContaining(`Not restored: ${pathOf("shared.txt")} (it does not hold what the batch wrote).`),
      metadata: { restored: [], notRestored: [{ file: pathOf("shared.txt") }] },
    });
    expect(await contentOf("shared.txt")).toBe("after\nmine\n");
  });

  test("leaves a file alone that has become larger than what it could have written", async () => {
    const { pathOf, run } = await withFiles({ "huge.txt": "before\n" });
    const grow = "until grep -q after huge.txt; do sleep 0.02; done; truncate -s 65M huge.txt; exit 1";
    const part = await run([write("huge.txt", "after\n"), shell(grow)]);
    expect(stateOf(part)).toMatchObject({
      error: expect.stringContaining(`${pathOf("huge.txt")} (it is larger than what the batch stores and writes).`),
      metadata: { restored: [], notRestored: [{ file: pathOf("huge.txt") }] },
    });
  });

  test("is refused before the start if its files have more than 64 MiB", async () => {
    const names = ["large-1.txt", "large-2.txt", "large-3.txt"];
    const large = "x\n".repeat(11 * 1024 * 1024);
    const { contentOf, run } = await withFiles(Object.fromEntries(names.map((name) => [name, large])));
    const part = await run([...names.map((name) => write(name, "small\n")), shell("touch never-large")]);
    expect(stateOf(part)).toMatchObject({
      effects: ToolEffects.NONE,
      error: expect.stringMatching(/nothing was run[\s\S]*have 69206016 bytes; at most 67108864 can be restored/),
    });
    for (const name of names) expect((await contentOf(name))?.length).toBe(large.length);
    expect(await readdir(service.workspace)).not.toContain("never-large");
  });

  test("restores its files also when it is cancelled", async () => {
    const { agent, sessionId, contentOf, run } = await withFiles({ "kept.txt": "before\n" });
    const stream = read(agent.tools.watchSession({ sessionId }));
    const running = run([
      write("kept.txt", "after\n"),
      shell("until grep -q after kept.txt; do sleep 0.02; done; echo seen; sleep 600"),
    ]);
    await stream.until("output");
    await agent.tools.cancelTool({ sessionId, callId: "c1" });
    expect(stateOf(await running)).toMatchObject({ reason: ToolErrorReason.CANCELLED });
    await expect.poll(() => contentOf("kept.txt")).toBe("before\n");
  });

  test("says before the start what cannot be taken back", async () => {
    const { agent } = await begin();
    const tools = [write("a", "b"), shell("true"), { tool: "webfetch", args: { url: "http://127.0.0.1" } }];
    const rules = [{ permission: "batch", pattern: "*", action: PermissionAction.ASK }];
    const plan = await agent.tools.planTool({ tool: "batch", input: { tools, atomic: true }, rules });
    expect(plan).toMatchObject({
      title: "3 calls, atomic, bash and webfetch cannot be taken back",
      asks: [{ metadata: { atomic: true, cannotBeTakenBack: ["bash", "webfetch"] } }],
    });
  });
});

test("a command that fails counts as a failed call of a batch", async () => {
  const { agent, sessionId } = await begin();
  const call = {
    sessionId,
    callId: "c1",
    agent: "free",
    tool: "batch",
    input: { tools: [shell("exit 1"), shell("true")], atomic: false },
  };
  expect(stateOf((await agent.tools.callTool(call)).part)).toMatchObject({
    output: expect.stringContaining("Executed 1/2 tools successfully. 1 failed."),
    metadata: { failed: 1, calls: [{ commandFailure: "exit code 1" }, {}] },
  });
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
