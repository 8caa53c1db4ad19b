/** Changes that a language server computes, errors that our own changes make, and the tool in the form of opencode. */
import { execFileSync } from "node:child_process";
import { copyFile, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { beforeAll, beforeEach, expect, test } from "vitest";
import { PermissionReply, type ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({
  settings: `
experimental = ["lsp"]
[lsp]
diagnostics = true
[lsp.fake]
command = ${JSON.stringify(process.execPath)}
args = ["language-server.ts"]
languages = { ".fake" = "fake" }
[permission]
lsp_server = "allow"
# Rules of all agents would hide the file from the server.
[agent.build.permission.read]
"private.fake" = "ask"
`,
});
const at = (name: string) => join(service.workspace, name);
const write = (name: string, text: string) => writeFile(at(name), text);
const content = (name: string) => readFile(at(name), "utf8");
const many = Array.from({ length: 20 }, (_, i) => `m${i}.fake`);

beforeAll(async () => {
  await copyFile(join(import.meta.dirname, "language-server.ts"), at("language-server.ts"));
  await write("package.json", '{ "type": "module" }');
});
beforeEach(async () => {
  for (const name of await readdir(service.workspace)) if (name.endsWith(".fake")) await rm(at(name));
});

interface State {
  output: string;
  error: string;
  reason: ToolErrorReason;
  metadata: JsonObject;
}

async function call(tool: string, input: JsonObject, agent = "free", sessionId = ""): Promise<State> {
  const { part } = await connect(service, "caller").tools.callTool({ tool, input, agent, sessionId });
  return part?.state.value as unknown as State;
}
const stateOf = (part: ToolPart) => part.state.value as unknown as State;
const place = { filePath: "m0.fake", line: 1, column: 5 };
const rename = (newName: string, agent?: string) => call("lsp_rename", { ...place, newName }, agent);

/** Starts a call that asks, and returns its stream with the request. */
async function ask(tool: string, input: JsonObject) {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const stream = read(tools.executeTool({ sessionId, callId: "c1", tool, input, agent: "build" }));
  const reply = async ({ id, digest }: { id: string; digest: string }) =>
    await connect(service, "approver").permissions.respondToPermission({
      ...{ sessionId, permissionId: id, expectedDigest: digest, reply: PermissionReply.ONCE },
    });
  return { stream, reply, asked: await stream.until("permissionAsked") };
}

async function writeMany(): Promise<void> {
  for (const name of many) await write(name, name === "m0.fake" ? "def apple\napple\n" : "// apple\napple apple\n");
}

test("a rename asks edit for every file with one diff, and changes all of them", async () => {
  await writeMany();
  const { stream, reply, asked } = await ask("lsp_rename", { ...place, newName: "pear" });
  expect(asked).toMatchObject({ permission: "edit", patterns: many.toSorted() });
  expect(asked.preview).toMatchObject({ additions: 40, deletions: 40, paths: many.toSorted() });
  expect(asked.preview?.diff.match(/^\+\+\+ /gm)).toHaveLength(20);
  expect(await content("m7.fake")).toContain("apple");
  await reply(asked);
  const { output, metadata } = stateOf(await stream.end());
  expect(output).toContain("Success. Updated the following files:\nM m0.fake\n");
  expect(metadata).toMatchObject({ additions: 40, deletions: 40, server: "fake" });
  for (const name of many) expect(await content(name)).not.toContain("apple");
  expect(await content("m0.fake")).toBe("def pear\npear\n");
});

test("a file that changes between approval and start is shown and asked again", async () => {
  await writeMany();
  const { stream, reply, asked } = await ask("lsp_rename", { ...place, newName: "pear" });
  await write("m9.fake", "other\napple\n");
  await reply(asked);
  const again = await stream.until("permissionAsked");
  expect(again.digest).not.toBe(asked.digest);
  expect(again.preview?.diff).toContain(" other\n-apple\n+pear\n");
  await reply(again);
  expect(stateOf(await stream.end()).output).toContain("M m9.fake");
  expect(await content("m9.fake")).toBe("other\npear\n");
});

test("another change that the server computes after the approval is shown and asked again", async () => {
  await write("m0.fake", "def apple\n");
  await write("source.txt", "plum");
  const { stream, reply, asked } = await ask("lsp_rename", { ...place, newName: "source" });
  expect(asked.preview?.diff).toContain("+def plum\n");
  await write("source.txt", "peach");
  await reply(asked);
  const again = await stream.until("permissionAsked");
  expect(again.preview?.diff).toContain("+def peach\n");
  expect(await content("m0.fake")).toBe("def apple\n");
  await reply(again);
  await stream.end();
  expect(await content("m0.fake")).toBe("def peach\n");
});

test("of a rename that meets a file that cannot be replaced nothing is changed", async () => {
  await writeMany();
  const { stream, reply, asked } = await ask("lsp_rename", { ...place, newName: "pear" });
  // Not even root may replace it; that it is read-only is no part of what is approved.
  execFileSync("chattr", ["+i", at("m11.fake")]);
  try {
    await reply(asked);
    const { error } = stateOf(await stream.end());
    expect(error).toMatch(/m11\.fake/);
  } finally {
    execFileSync("chattr", ["-i", at("m11.fake")]);
  }
  for (const name of many) expect(await content(name)).toContain("apple");
});

test("a rename creates, moves and deletes files, keeps modes, and takes all back if one fails", async () => {
  await write("m0.fake", "def apple\n");
  await write("old-name.fake", "apple stays here\n");
  await write("gone.fake", "gone\n");
  execFileSync("chmod", ["755", at("old-name.fake")]);
  const { stream, reply, asked } = await ask("lsp_rename", { ...place, newName: "moved" });
  expect(asked.preview?.diff).toContain("rename from old-name.fake\nrename to new-name.fake\n");
  expect(asked.preview?.diff).toContain("deleted gone.fake\n");
  expect(asked.patterns.toSorted()).toEqual(["created.fake", "gone.fake", "m0.fake", "new-name.fake", "old-name.fake"]);
  await reply(asked);
  const lines = stateOf(await stream.end())
    .output.split("\n")
    .slice(1)
    .toSorted();
  expect(lines).toEqual(["A created.fake", "D gone.fake", "M m0.fake", "M old-name.fake -> new-name.fake"]);
  expect(await content("created.fake")).toBe("new\n");
  expect(await content("new-name.fake")).toBe("moved stays here\n");
  expect((await stat(at("new-name.fake"))).mode & 0o777).toBe(0o755);
  expect((await readdir(service.workspace)).filter((name) => name.endsWith(".fake")).toSorted()).toEqual([
    ...["created.fake", "m0.fake", "new-name.fake"],
  ]);
});

test("an edit that exchanges the names of two files is not applied, and loses neither", async () => {
  for (const name of ["m0", "one", "two"]) await write(`${name}.fake`, `def ${name}\n`);
  expect((await rename("swapped")).error).toContain("one of them in another step too. Nothing was changed");
  for (const name of ["one", "two"]) expect(await content(`${name}.fake`)).toBe(`def ${name}\n`);
});

test("an edit outside the workspace, of a file that may not be read, or for an old version is not applied", async () => {
  await write("m0.fake", "def apple\n");
  expect((await rename("outside")).error).toContain(
    "/etc/passwd, which lies outside the workspace. Nothing was changed",
  );
  expect((await rename("old")).error).toContain("is not ready yet");
  await write("private.fake", "apple\n");
  const { error } = await rename("pear", "build");
  expect(error).toContain("private.fake, which rules do not allow to read without asking");
  expect(await content("m0.fake")).toBe("def apple\n");
});

test("a rename that changes nothing says so, and an agent that may not edit does not see the tool", async () => {
  await write("m0.fake", "def apple\n");
  expect((await rename("apple")).output).toBe("No changes");
  await write("m0.fake", "\n");
  expect((await rename("pear")).error).toContain("Cannot rename at this position");
});

const range = { filePath: "m0.fake", startLine: 1, startColumn: 1, endLine: 1, endColumn: 4 };

test("code actions are listed, one is applied by its JSON, and commands are not executed", async () => {
  await write("m0.fake", "bad\n");
  const { output } = await call("lsp_code_actions", range);
  const [fix = "", command = "", disabled = ""] = output.split("\n");
  expect(fix).toBe('{"title":"Make it good","kind":"quickfix"} (preferred)');
  expect(command).toContain("(may only run a command, which is not executed)");
  expect(disabled).toContain("(not possible: it is not possible)");
  const named = (title: string) => call("lsp_code_actions", { ...range, apply: { title } });
  expect((await named("Run a program")).error).toContain("which is not executed");
  expect((await named("Not here")).error).toContain("is not possible: it is not possible");
  const { stream, reply, asked } = await ask("lsp_code_actions", {
    ...{ ...range, apply: fix.slice(0, fix.indexOf("}") + 1) },
  });
  expect(asked).toMatchObject({ permission: "edit", patterns: ["m0.fake"] });
  expect(asked.preview?.diff).toContain("-bad\n+good\n");
  await reply(asked);
  await stream.end();
  expect(await content("m0.fake")).toBe("good\n");
  expect((await call("lsp_code_actions", range)).output).toBe("No code actions available");
  expect((await named("Make it good")).error).toContain("There is no code action");
});

test("edit and write report the errors that they make, and not those that were there before", async () => {
  await write("m0.fake", "fine\nbad\n");
  const sessionId = await connect(service, "caller").newSession();
  await call("read", { filePath: "m0.fake" }, "free", sessionId);
  const change = { filePath: "m0.fake", oldString: "fine", newString: "still fine" };
  const edited = await call("edit", change, "free", sessionId);
  expect(edited.output).not.toContain("New errors");
  const created = await call("write", { filePath: "m1.fake", content: "bad\n" });
  expect(created.output).toBe(
    "Wrote file successfully.\n\nNew errors in m1.fake, please fix:\nerror[fake] at 1:1: bad now",
  );
  const other = await call("write", { filePath: "note.txt", content: "bad\n" });
  expect(other.output).toBe("Wrote file successfully.");
});

test("the tool lsp answers in the form of opencode, as JSON that counts from 1", async () => {
  await write("m0.fake", "def apple\napple\n");
  const lsp = async (operation: string, fields: JsonObject = {}) =>
    await call("lsp", { operation, ...{ ...place, line: 2, column: 1 }, ...fields });
  const apple = { path: "m0.fake", line: 1, column: 5 };
  expect(JSON.parse((await lsp("goToDefinition")).output)).toEqual([{ ...apple, text: "def apple" }]);
  expect(JSON.parse((await lsp("findReferences")).output)).toHaveLength(2);
  expect(JSON.parse((await lsp("hover")).output)).toMatchObject([{ contents: expect.stringContaining("apple") }]);
  const symbol = { ...apple, name: "apple", kind: "Function" };
  expect(JSON.parse((await call("lsp", { operation: "documentSymbol", filePath: "m0.fake" })).output)).toEqual([
    symbol,
  ]);
  expect(JSON.parse((await lsp("workspaceSymbol", { query: "app" })).output)).toEqual([symbol]);
  expect(JSON.parse((await lsp("prepareCallHierarchy")).output)).toEqual([symbol]);
  expect(JSON.parse((await lsp("incomingCalls")).output)).toEqual([symbol]);
  expect((await lsp("outgoingCalls")).output).toBe("No results found for outgoingCalls");
  expect((await lsp("goToImplementation")).error).toContain("does not answer textDocument/implementation");
});
