import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer as createHttp2Server, type ServerHttp2Stream } from "node:http2";
import { type AddressInfo, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { stringify } from "smol-toml";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { agentFacts, type HookFault } from "../../src/agents/hooks/agent-facts.ts";
import type { ToolUse } from "../../src/cli/canary/mock-model.ts";
import { clientOf } from "../e2e/clients.ts";
import { hostTokens } from "../e2e/host.ts";
import { createService, startService } from "../e2e/service.ts";
import { createPlace } from "./agents.ts";
import { answerAll, answerNext, type Connector, nextRequest, ownProgram, runTool } from "./connectors.ts";
import { measure } from "./matrix.ts";
import type { Script, Steps } from "./mock-models.ts";

const rules = '[permission.bash]\n"touch -a marker" = "allow"\n"touch -m marker" = "deny"\n';
const service = createService({ settings: `${rules}${hostTokens}` });

const right = () => ({ server: service.url, token: "host-token-for-tests", timeout: 660, program: ownProgram });

/** Returns the calls of all sessions. */
async function allParts(): Promise<ToolPart[]> {
  const { sessions } = await clientOf(SessionService, service.url, "admin-token-for-tests").listSessions({});
  const tools = clientOf(ToolService, service.url, "admin-token-for-tests");
  const pages = await Promise.all(sessions.map(({ id }) => tools.listToolParts({ sessionId: id })));
  return pages.flatMap(({ parts }) => parts);
}

/** Creates a token of a host that is revoked at once. */
async function revokedToken(): Promise<string> {
  const credentials = clientOf(CredentialService, service.url, "admin-token-for-tests");
  const { token, credential } = await credentials.createToken({ roles: ["host"] });
  await credentials.revokeCredential({ id: credential?.id ?? "" });
  return token;
}

/** Starts a service that the kernel has stopped; returns its address. */
async function frozenService(): Promise<string> {
  const frozen = await startService({ settings: hostTokens });
  process.kill(frozen.pid ?? 0, "SIGSTOP");
  return frozen.url;
}

/** Serves until the test ends; returns the address. */
async function listening(server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** A service that answers every request with a body. */
const answering = (status: number, body: Buffer) =>
  createHttp2Server()
    .on("session", (session) => session.on("error", () => undefined))
    .on("stream", (stream: ServerHttp2Stream) => {
      const headers = { ":status": status, "content-type": "application/grpc+proto" };
      stream.on("error", () => undefined).respond(headers, { waitForTrailers: true });
      stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" })).end(body);
    });

/** Programs in place of ours. A shell of the hook's line dies with the hook, as the group of a process does. */
const faults: Readonly<Record<HookFault, string>> = {
  "is killed": 'case "$(cat /proc/$PPID/comm)" in sh) kill -9 $PPID;; esac; kill -9 $$',
  "prints nothing": "exit 0",
  "prints no JSON": "echo broken",
  "takes too long": "exec sleep 20",
};

/** Writes a program that does nothing but this; returns the words that run it. */
function programOf(line: string): string[] {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-fault-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  writeFileSync(join(directory, "hook.sh"), `${line}\n`);
  return ["/bin/sh", join(directory, "hook.sh")];
}

/** Writes a file of the project until the test ends. */
function writeProject(file: string, text: string): void {
  const path = join(service.workspace, file);
  const [top = ""] = file.split("/");
  onTestFinished(() => rmSync(join(service.workspace, top), { recursive: true, force: true }));
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

/** Returns the text of a file of settings, or of variables, that has a value at a path of keys; text stands in a list. */
function settingsWith(file: string, path: string, value: boolean | string = loaderLibrary()): string {
  if (file.endsWith(".env")) return `LD_PRELOAD=${value}\n`;
  const isListed = typeof value === "string" && !path.startsWith("env.");
  const keys = path.replace("*", "PRELOAD").split(".");
  const settings = keys.reduceRight<unknown>((inner, key) => ({ [key]: inner }), isListed ? [value] : value) as object;
  return file.endsWith(".toml") ? stringify(settings) : JSON.stringify(settings);
}

/** Compiles a library with which each program of a hook's line ends at once, in silence, as LD_PRELOAD; returns its path. */
function loaderLibrary(): string {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-loader-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  const [source, library] = [join(directory, "loader.c"), join(directory, "loader.so")];
  writeFileSync(source, loaderSource);
  const { status } = spawnSync("gcc", ["-shared", "-fPIC", "-o", library, source], { stdio: "inherit" });
  if (status !== 0) throw new Error("the test needs a C compiler; install it: apt-get install gcc libc6-dev");
  return library;
}

const loaderSource = `
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void end(void) {
  char words[4096];
  FILE *file = fopen("/proc/self/cmdline", "r");
  size_t size = file ? fread(words, 1, sizeof words, file) : 0;
  if (size > 0 && memmem(words, size, "--token-file", 12)) _exit(0);
}
`;

/** Tests what an agent does with its hook in each row of the table; the file of an agent calls it once. */
export function testHook(name: string, connector: Connector): void {
  beforeAll(service.start);
  afterAll(service.close);
  afterEach(() => rmSync(join(service.workspace, "marker"), { force: true }));
  const { kind } = connector;
  const { runsAfter = [], off = [], asksItself = false } = agentFacts[kind] ?? {};

  test("control: without it the tool runs", async () => {
    expect(await runTool(connector, service.workspace)).toMatchObject({ hasMarker: true });
  });

  test("an approved tool runs, and its result is reported", async (context) => {
    const running = runTool(connector, service.workspace, right());
    const { sessionId } = await answerNext(service, PermissionReply.ONCE);
    expect(await running).toMatchObject({ hasMarker: true });
    const part = (await allParts()).find((each) => each.sessionId === sessionId);
    // The prompt tool learns of no result.
    const isReported = !name.includes("prompt tool");
    expect(part?.reportedBy).toBe(isReported ? "host" : "");
    expect(part?.state.case).toBe(isReported ? "completed" : "running");
    measure(context, kind, "approved", "allowed");
  });

  test("an input that the approver edited is the one that runs", async (context) => {
    const running = runTool(connector, service.workspace, right(), connector.script("touch other"));
    await answerNext(service, PermissionReply.ONCE, { input: { command: "touch marker", description: "edited" } });
    // The edited command needs permission as well.
    await answerNext(service, PermissionReply.ONCE);
    expect(await running).toMatchObject({ hasMarker: true });
    measure(context, kind, "approved with another input", "allowed");
  });

  test("a rejected tool does not run, and the model reads the advice", async (context) => {
    const running = runTool(connector, service.workspace, right());
    await answerNext(service, PermissionReply.REJECT, { message: "Use the other file." });
    const { hasMarker, results } = await running;
    expect(hasMarker).toBe(false);
    expect(results.join()).toContain("Use the other file.");
    measure(context, kind, "rejected", "denied");
  });

  test("a tool that nobody answers in time does not run", async (context) => {
    const { hasMarker, results } = await runTool(connector, service.workspace, { ...right(), timeout: 7 });
    expect(hasMarker).toBe(false);
    expect(results.join()).toContain("not answered yet");
    await answerNext(service, PermissionReply.REJECT);
    measure(context, kind, "not answered in time", "denied");
  });

  test("a tool that nobody answered in time and that is used again waits for the same request", async (context) => {
    const [[, [use]]] = connector.script("touch marker") as [[string, ToolUse[]]];
    let answered: Promise<unknown> | undefined;
    const twice = (results: readonly string[]) => {
      if (results.length === 1) answered ??= answerNext(service, PermissionReply.ONCE);
      return results.length < 2 ? use : undefined;
    };
    const options = { ...right(), timeout: 15 };
    const { hasMarker } = await runTool(connector, service.workspace, options, [["go", twice]]);
    await answered;
    expect(hasMarker).toBe(true);
    measure(context, kind, "not answered in time, used again and approved", "allowed");
  });

  test.for([
    ["touch -a marker", true, "a rule allows it", "allowed"],
    ["touch -m marker", false, "a rule denies it", "denied"],
  ] as const)("%s is decided by a rule, without a question", async ([command, runs, row, outcome], context) => {
    const { hasMarker } = await runTool(connector, service.workspace, right(), connector.script(command));
    expect(hasMarker).toBe(runs);
    measure(context, kind, row, outcome);
  });

  test("an input of 100 kB asks, and rejected it does not run", async (context) => {
    const script = connector.script(`touch marker # ${"x".repeat(100_000)}`);
    const running = runTool(connector, service.workspace, right(), script);
    await answerNext(service, PermissionReply.REJECT);
    expect(await running).toMatchObject({ hasMarker: false });
    measure(context, kind, "an input of 100 kB", "asks");
  });

  test("a tool in a directory of no workspace does not run", async (context) => {
    const { workspace } = await createPlace();
    expect(await runTool(connector, workspace, { ...right(), timeout: 15 })).toMatchObject({ hasMarker: false });
    measure(context, kind, "the directory is in no workspace", "denied");
  });

  test("a service that is killed while a tool waits", async (context) => {
    const doomed = await startService({ settings: hostTokens });
    const running = runTool(connector, doomed.workspace, { ...right(), server: doomed.url, timeout: 15 });
    await nextRequest(doomed);
    await doomed.kill();
    expect(await running).toMatchObject({ hasMarker: false });
    measure(context, kind, "the service is killed meanwhile", "denied");
  });

  test.for([
    ["the service is away", async () => ({ server: "http://127.0.0.1:9" })],
    ["a wrong token", async () => ({ token: "no-token-of-this-service" })],
    ["a token that is revoked", async () => ({ token: await revokedToken() })],
    ["the file of the token is missing", async () => ({ more: ["--token-file", "/nonexistent"] })],
    ["a program of another user is at the address", async () => ({ more: ["--uid", "61009"] })],
    ["a token of another role", async () => ({ token: "approver-token-for-tests" })],
    ["the program is missing", async () => ({ program: ["/nonexistent/toolgate"] })],
    ["the program fails", async () => ({ program: ["false"] })],
    ["the service answers 500", async () => ({ server: await listening(answering(500, Buffer.from("broken"))) })],
    ["a malformed answer", async () => ({ server: await listening(answering(200, Buffer.from("garbage"))) })],
    [
      "an answer that is not HTTP/2",
      async () => ({ server: await listening(createHttpServer((_, response) => void response.writeHead(500).end())) }),
    ],
    ["the service is frozen", async () => ({ server: await frozenService(), timeout: 8 })],
    ["the service never answers", async () => ({ server: await listening(createServer()), timeout: 8 })],
  ] as const)("%s: the tool does not run", async ([fault, wrong], context) => {
    const run = await runTool(connector, service.workspace, { ...right(), ...(await wrong()) });
    expect(run.hasMarker).toBe(false);
    // The model learns of the refusal, unless the agent ends because its permission prompt tool is missing.
    expect(run.results.length === 1 || run.code !== 0).toBe(true);
    measure(context, kind, fault, "denied");
  });

  test.for(Object.entries(faults) as [HookFault, string][])(
    "a hook that %s is open only where the facts say so",
    async ([fault, line], context) => {
      const { hasMarker } = await runTool(connector, service.workspace, {
        ...right(),
        program: programOf(line),
        timeout: 3,
      });
      expect(hasMarker).toBe(runsAfter.includes(fault));
      measure(context, kind, `the hook ${fault}`, hasMarker ? "runs" : "denied");
    },
  );

  test.for(off.flatMap(({ files, path, value, uses }) => files.map((file) => ({ file, path, value, uses }))))(
    "$path in $file of a project lets a tool run unasked",
    async ({ file, path, value, uses }, context) => {
      writeProject(file, settingsWith(file, path, value));
      const script = uses === "terminal" ? connector.terminal?.("touch marker") : undefined;
      const running = runTool(connector, service.workspace, { ...right(), timeout: 7 }, script);
      const { hasMarker } = await answerAll(service, running);
      expect(hasMarker).toBe(!asksItself);
      measure(context, kind, `a project sets \`${path}\``, hasMarker ? "runs" : "denied");
    },
  );

  // A test that is skipped leaves the table as it is.
  const { subagent, elsewhere } = connector;
  test.for(elsewhere === undefined ? [] : [elsewhere])(
    "a command that the model starts in another directory is judged there",
    async (elsewhere) => {
      writeProject("sub/file", "");
      const script = elsewhere("touch marker", join(service.workspace, "sub"));
      const running = runTool(connector, service.workspace, right(), script);
      const { metadata } = await answerNext(service, PermissionReply.ONCE);
      await running;
      expect(metadata).toMatchObject({ workdir: "sub" });
      expect(existsSync(join(service.workspace, "sub/marker"))).toBe(true);
    },
  );
  test.for(subagent === undefined ? [] : [subagent])(
    "a tool of a subagent asks, and rejected it does not run",
    async (subagent, context) => {
      const [[, uses]] = connector.script("touch marker") as [[string, Steps]];
      const script: Script = [
        ["SUBTASK", uses],
        ["go", subagent("SUBTASK")],
      ];
      const before = new Set((await allParts()).map(({ callId }) => callId));
      const { hasMarker } = await answerAll(service, runTool(connector, service.workspace, right(), script));
      expect(hasMarker).toBe(false);
      const made = (await allParts()).filter(({ callId }) => !before.has(callId));
      const rejected = made.filter(
        ({ state }) => state.case === "error" && state.value.reason === ToolErrorReason.REJECTED,
      );
      expect(rejected).toHaveLength(1);
      measure(context, kind, "a tool of a subagent", "asks");
    },
  );
}
