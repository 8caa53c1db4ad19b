/** Code intelligence with a small language server that also misbehaves; real servers are in test/clients/lsp.test.ts. */
import { execFile } from "node:child_process";
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { homedir, hostname } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import type { JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from "vitest";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startAtTerminal, toolgate } from "../cli/toolgate.ts";
import { programEntry } from "../main.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { createService } from "./service.ts";

/** A port of this machine that no language server may reach. */
const listener = createServer().listen(0, "127.0.0.1");
await new Promise((resolve) => listener.once("listening", resolve));
const address = listener.address();
const port = typeof address === "object" && address !== null ? address.port : 0;

const settings = `
[lsp.fake]
command = ${JSON.stringify(process.execPath)}
args = ["language-server.ts", "${port}"]
languages = { ".fake" = "fake" }
timeout_ms = 5_000
[lsp.odd]
command = ${JSON.stringify(process.execPath)}
args = ["language-server.ts", "${port}"]
languages = { ".odd" = "odd" }
[lsp.own]
command = "own-server"
args = ["language-server.ts"]
languages = { ".own" = "own" }
[lsp.absent]
command = "no-such-program"
languages = { ".absent" = "absent" }
# Rules of all agents would hide the file from the server, which is stopped when one appears that it can still reach.
[agent.build.permission.read]
"private.fake" = "ask"
`;
const service = createService({ settings });

beforeAll(async () => {
  await service.start();
  await copyFile(join(import.meta.dirname, "language-server.ts"), at("language-server.ts"));
  await write("package.json", '{ "type": "module" }');
  await write(".env", "SECRET=1\n");
});
afterAll(async () => {
  await service.close();
  listener.close();
});
beforeEach(async () => {
  for (const name of await readdir(service.workspace)) if (name.endsWith(".fake")) await write(name, "");
});

const at = (name: string) => join(service.workspace, name);
const write = (name: string, text: string) => writeFile(at(name), text);
const content = (name: string) => readFile(at(name), "utf8");

/** Calls a tool as an agent that may do everything. */
async function call(tool: string, input: JsonObject = {}, agent = "free") {
  const { part } = await connect(service, "caller").tools.callTool({ tool, input, agent });
  return part?.state.value as unknown as {
    output: string;
    error: string;
    reason: ToolErrorReason;
    metadata: JsonObject;
  };
}
const hover = (line: number, filePath = "a.fake") => call("lsp_hover", { filePath, line, column: 1 });

test("starting a server asks in a workspace that is not trusted, once", async () => {
  await write("a.fake", "first\n");
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const input = { filePath: "a.fake", line: 1, column: 1 };
  const refused = await call("lsp_rename", { ...input, newName: "x" }, "build");
  expect(refused.error).toContain("to start it needs an approval here. Call lsp_hover");
  const stream = read(tools.executeTool({ sessionId, callId: "c1", tool: "lsp_hover", input, agent: "build" }));
  const asked = await stream.until("permissionAsked");
  expect(asked).toMatchObject({ permission: "lsp_server", patterns: ["fake"] });
  expect(asked.preview?.command).toContain(`language-server.ts ${port}`);
  const reply = { sessionId, permissionId: asked.id, expectedDigest: asked.digest, reply: PermissionReply.ONCE };
  await connect(service, "approver").permissions.respondToPermission(reply);
  expect((await stream.end()).state).toMatchObject({ case: "completed" });
  expect(await call("lsp_hover", input, "build")).toMatchObject({ output: expect.stringContaining("first") });
});

test("programs of the workspace run only once it is trusted, and then without an ask", async () => {
  await write("a.own", "mine\n");
  await mkdir(at("node_modules/.bin"), { recursive: true });
  await symlink(process.execPath, at("node_modules/.bin/own-server"));
  const question = () => call("lsp_hover", { filePath: "a.own", line: 1, column: 1 }, "build");
  const { error } = await question();
  expect(error).toMatch(/own-server\), whose code is not trusted, so it was not started/);
  expect(error).toContain(`toolgate trust ${service.workspace}`);
  const trust = ["trust", service.workspace, "--data", service.data, "--config", service.config];
  await toolgate(trust);
  expect((await question()).output).toContain("mine");
  await toolgate([...trust, "--remove"]);
});

test("hover shows the content on disk as it is now, with invisible characters made visible", async () => {
  await write("a.fake", "one\n");
  expect((await hover(1)).output).toMatch(/^one \(version \d+, \\u\{202e\}\)$/);
  await write("a.fake", "two\n");
  expect((await hover(1)).output).toContain("two");
  await call("edit", { filePath: "a.fake", oldString: "", newString: "x" });
  await write("a.fake", "!nothing\n");
  expect((await hover(1)).output).toBe("No hover information available");
});

test("a server is notified of what tools, commands and other programs change in its project", async () => {
  await write("a.fake", "!events\n");
  await hover(1);
  await call("write", { filePath: "made/by-tool.txt", content: "x" });
  await call("bash", { command: "mkdir -p deep/er && echo x > deep/er/by-command.txt && rm made/by-tool.txt" });
  await write("note.txt", "by another program");
  expect((await hover(1)).output).toBe("new by-command.txt, new note.txt");
  await write("note.txt", "again");
  await write("deep/er/by-command.txt", "again");
  expect((await hover(1)).output).toBe("changed by-command.txt, changed note.txt");
  await rm(at("note.txt"));
  expect((await hover(1)).output).toBe("gone note.txt");
  await call("bash", { command: "rm -r deep && echo x > deep" });
  expect((await hover(1)).output).toBe("gone by-command.txt, new deep");
  await rm(at("deep"));
});

test("definitions, references and symbols name line and column from 1, with the text of the line", async () => {
  await write("a.fake", "def apple\n  apple apple\n");
  await write("b.fake", "apple\n");
  const place = { filePath: "a.fake", line: 2, character: 2 };
  expect((await call("lsp_goto_definition", place)).output).toBe("a.fake:1:5: def apple");
  expect((await call("lsp_goto_definition", { filePath: "a.fake", line: 2, column: 3 })).output).toContain(
    "a.fake:1:5",
  );
  const uses = ["a.fake:1:5: def apple", "a.fake:2:3: apple apple", "a.fake:2:9: apple apple", "b.fake:1:1: apple"];
  expect((await call("lsp_find_references", place)).output).toBe(uses.join("\n"));
  expect((await call("lsp_document_symbols", { filePath: "a.fake" })).output).toBe("apple (Function) - a.fake:1:5");
  const found = await call("lsp_workspace_symbols", { filePath: "b.fake", query: "app" });
  expect(found.output).toBe("apple (Function) - a.fake:1:5");
  expect((await call("lsp_document_symbols", { filePath: "b.fake" })).output).toBe("No symbols found");
});

test("a column is given as column or as character, and not as both", async () => {
  for (const columns of [{}, { column: 1, character: 0 }]) {
    const { reason, error } = await call("lsp_hover", { filePath: "a.fake", line: 1, ...columns });
    expect(reason).toBe(ToolErrorReason.INVALID_INPUT);
    expect(error).toContain("Give exactly one of column (counted from 1) and character (counted from 0)");
  }
});

test("of many results the first 200 are shown", async () => {
  await write("a.fake", `def pear\n${"pear\n".repeat(300)}`);
  const { output, metadata } = await call("lsp_find_references", { filePath: "a.fake", line: 1, column: 5 });
  expect(output.split("\n")[0]).toBe("Found 301 references (showing first 200):");
  expect(output.split("\n")).toHaveLength(201);
  expect(metadata).toMatchObject({ count: 301, truncated: true });
  expect(metadata.places).toHaveLength(200);
});

test("lists name their places for people, with the lines around each", async () => {
  await write("a.fake", "one\ntwo\n  def plum\nbad \u202e\n");
  const plum = {
    path: "a.fake",
    line: 3,
    column: 7,
    preview: "  1  one\n  2  two\n> 3    def plum\n  4  bad \\u{202e}\n  5  ",
  };
  const places = async (tool: string, input: JsonObject) => {
    const { metadata } = await call(tool, { filePath: "a.fake", ...input });
    expect(metadata.directory).toBe(service.workspace);
    return metadata.places;
  };
  const position = { line: 3, column: 7 };
  expect(await places("lsp_goto_definition", position)).toEqual([plum]);
  expect(await places("lsp_find_references", position)).toEqual([plum]);
  expect(await places("lsp_document_symbols", {})).toEqual([plum]);
  expect(await places("lsp_workspace_symbols", { query: "plum" })).toEqual([plum]);
  expect(await places("lsp_diagnostics", {})).toMatchObject([
    { path: "a.fake", line: 4, column: 1, preview: expect.stringContaining("> 4  bad") },
  ]);
});

test("in a terminal that knows hyperlinks, places open their file", async () => {
  await write("a.fake", "def plum\n");
  const input = JSON.stringify({ filePath: "a.fake", line: 1, column: 5 });
  const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" };
  const args = ["call", "lsp_goto_definition", input, "--agent", "free"];
  const { finished } = startAtTerminal(args, environment);
  const address = `file://${hostname()}${at("a.fake")}#1`;
  expect((await finished).stdout).toContain(`\x1b]8;;${address}\x1b\\a.fake:1:5\x1b]8;;\x1b\\: def plum`);
});

test("results in files that rules do not allow to read are left out and counted", async () => {
  await write("a.fake", "def plum\n");
  await write("private.fake", "plum\n");
  const { output, metadata } = await call("lsp_find_references", { filePath: "a.fake", line: 1, column: 5 }, "build");
  expect(output).toContain("a.fake:1:5: def plum");
  expect(output).not.toContain("private.fake");
  expect(output).toContain("(1 result is left out");
  expect(metadata).toMatchObject({ count: 1, leftOut: 1 });
  expect((await hover(1, "private.fake")).error ?? "").toBe("");
  const own = await call("lsp_hover", { filePath: "private.fake", line: 1, column: 1 }, "build");
  expect(own.error).toContain("Rules do not allow to read private.fake without asking");
});

test("diagnostics are those of the present content, or the server is not ready", async () => {
  await write("a.fake", "fine\nbad\n");
  expect((await call("lsp_diagnostics", { filePath: "a.fake" })).output).toBe("error[fake] at 2:1: bad now");
  await write("a.fake", "fine\n");
  expect((await call("lsp_diagnostics", { filePath: "a.fake" })).output).toBe("No diagnostics found");
  await write("a.fake", "bad !late\n");
  expect((await call("lsp_diagnostics", { filePath: "a.fake" })).error).toContain("is not ready yet");
});

test("an answer that the server calls outdated is asked for again, and then it is not ready", async () => {
  await write("a.fake", "!outdated\n");
  expect((await hover(1)).error).toContain("is not ready yet: it has no answer for the present content");
});

test("columns count UTF-16 code units, from 1 or as character from 0", async () => {
  await write("a.fake", "\u{1f600} def plum\n");
  const question = (position: JsonObject) => call("lsp_goto_definition", { filePath: "a.fake", line: 1, ...position });
  const found = "a.fake:1:8: \u{1f600} def plum";
  for (const position of [{ column: 8 }, { character: 7 }, { column: 11 }])
    expect((await question(position)).output).toBe(found);
  expect((await question({ column: 7 })).output).toBe("No definition found");
});

test("a server changes nothing by itself, sees no hidden file, leaves no set-ID file and reaches no network", async () => {
  await write("a.fake", "!edit\n");
  const { applied, written, secret, setId, reached } = JSON.parse((await hover(1)).output);
  expect(applied).toMatchObject({ applied: false });
  expect(written).toBe("EROFS");
  expect(secret).not.toContain("SECRET");
  expect(setId).toBe("EPERM");
  expect(reached).not.toBe("connected");
  expect(await content("a.fake")).toBe("!edit\n");
});

test("a server does not get a directory that the program which started the service left open", async () => {
  await write("a.fake", "!edit\n");
  const input = JSON.stringify({ filePath: "a.fake", line: 1, column: 1 });
  const home = await mkdtemp(join(homedir(), ".toolgate-test-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const own = ["--workspace", service.workspace, "--config", service.config];
  const run = [process.execPath, programEntry(), "run", "lsp_hover", input, "--agent", "free", ...own];
  // Node protects low descriptors by itself, up to the first gap.
  const { stdout } = await promisify(execFile)("bash", ["-c", 'exec 200</; exec "$0" "$@"', ...run], {
    env: { PATH: process.env.PATH, HOME: home },
  });
  expect(stdout).toContain('"inherited":"EBADF"');
});

test("a call to a server that hangs ends, and other calls are answered", async () => {
  await write("a.fake", "!hang\nfine\n");
  const hanging = hover(1);
  expect((await hover(2)).output).toContain("fine");
  expect((await hanging).error).toContain("did not answer textDocument/hover within 5 s");
});

test("a server that floods its client is stopped, and started again by the next call", async () => {
  for (const how of ["!flood", "!huge"]) {
    await write("a.fake", `${how}\nfine\n`);
    const { error } = await hover(1);
    expect(error).toMatch(/stopped before it answered: it sent (20000 messages in|a message of more than)/);
    await write("a.fake", "fine\n");
    expect((await hover(1)).output).toContain("fine");
  }
});

test("a server that answers what nobody asked, or closes its stdout and runs on, is stopped and started again", async () => {
  const odd = async (text: string) => {
    await write("a.odd", text);
    return await hover(1, "a.odd");
  };
  expect((await odd("!answers\n")).error).toContain("stopped before it answered: it sent 20000 messages in");
  expect((await odd("fine\n")).output).toContain("fine");
  expect((await odd("!closes\n")).error).toContain("stopped before it answered: it closed its stdout");
  expect((await odd("fine\n")).output).toContain("fine");
});

test("a server that ended three times is broken, with its reason and how to install it", async () => {
  await write("a.fake", "!crash\n");
  const errors = [(await hover(1)).error, (await hover(1)).error];
  expect(errors[0]).toContain("it ended (exit code 3); it printed last: out of luck");
  expect(errors.at(-1)).toContain("is broken: it ended 3 times within 5 minutes");
  expect(errors.at(-1)).toContain(`install ${process.execPath}, or correct command in [lsp.fake]`);
});

test("a file without a server, one whose server is not installed and one outside are refused with the next step", async () => {
  await write("note.txt", "");
  await write("x.absent", "");
  const question = (filePath: string) => call("lsp_hover", { filePath, line: 1, column: 1 });
  expect((await question("note.txt")).error).toContain("No LSP server available for this file type.");
  expect((await question("x.absent")).error).toContain(
    "is not installed: there is no no-such-program. Install it: install no-such-program, or correct command in [lsp.absent]",
  );
  expect((await question("/etc/passwd")).error).toContain("lies outside the workspace");
  expect((await question("missing.fake")).error).toContain("File not found");
});
