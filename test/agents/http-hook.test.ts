import { once } from "node:events";
import { existsSync, rmSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolUse } from "../../src/cli/canary/mock-model.ts";
import { hostTokens } from "../e2e/host.ts";
import { createService, startService } from "../e2e/service.ts";
import { runClaude } from "./agents.ts";
import { connectPerson } from "./claude-runner.ts";
import { answerNext, type ConnectorOptions, httpHook, nextRequest, ownProgram, runTool } from "./connectors.ts";
import { serveAnthropic } from "./mock-models.ts";

const service = createService({ settings: hostTokens });
beforeAll(service.start);
afterAll(service.close);
afterEach(() => rmSync(join(service.workspace, "marker"), { force: true }));

/** Runs Claude Code with HTTP hooks, and a rule that lets the tool run without them. */
function runHttp(wrong: Partial<ConnectorOptions> = {}, command?: string, { workspace } = service) {
  const right = { server: service.url, token: "host-token-for-tests", timeout: 60, program: ownProgram };
  return runTool(
    httpHook,
    workspace,
    { ...right, ...wrong },
    command === undefined ? undefined : httpHook.script(command),
  );
}

/** Runs Claude Code with the files that `toolgate connect claude --http-hook` wrote, as its note says. */
async function runConnected(use: (mcpName: string) => ToolUse) {
  const person = await connectPerson(service, ["--http-hook"]);
  const record = JSON.parse(await readFile(join(person.home, ".config/toolgate/connect/claude.json"), "utf8"));
  const model = await serveAnthropic([["go", [use(record.mcpName)]]]);
  const env = {
    TOOLGATE_HOOK_TOKEN: (await readFile(record.tokenFile, "utf8")).trim(),
    // Offers the tools of MCP servers without a search for them.
    ENABLE_TOOL_SEARCH: "false",
  };
  await runClaude(person, model, ["--allowedTools", "Bash"], env);
  return model.results;
}

test("with the settings that --http-hook writes, an approved tool runs, and a rejected one does not", async () => {
  const use = { tool: "Bash", input: { command: "touch marker; echo made it", description: "leaves a marker" } };
  const rejected = runConnected(() => use);
  await answerNext(service, PermissionReply.REJECT, { message: "Use the other file." });
  expect((await rejected).join()).toContain("Use the other file.");
  expect(existsSync(join(service.workspace, "marker"))).toBe(false);
  const approved = runConnected(() => use);
  await answerNext(service, PermissionReply.ONCE);
  expect((await approved).join()).toContain("made it");
});

test("with the settings that --http-hook writes, a tool of our MCP server asks once", async () => {
  const input = { command: "touch marker; echo made it", description: "leaves a marker" };
  const running = runConnected((mcpName) => ({ tool: `mcp__${mcpName}__bash`, input }));
  // A second request would wait until the limit of the test.
  await answerNext(service, PermissionReply.ONCE);
  expect((await running).join()).toContain("made it");
  expect(existsSync(join(service.workspace, "marker"))).toBe(true);
});

/** Serves one answer to every request. */
async function answering(status: number, body: string): Promise<string> {
  const server = createServer((_, response) => void response.writeHead(status).end(body)).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("control: without a hook the tool runs", async () => {
  expect(await runTool(httpHook, service.workspace)).toMatchObject({ hasMarker: true });
});

test("an approved tool runs", async () => {
  const running = runHttp();
  await answerNext(service, PermissionReply.ONCE);
  expect(await running).toMatchObject({ hasMarker: true });
});

test("a rejected tool does not run, and the model reads the advice", async () => {
  const running = runHttp();
  await answerNext(service, PermissionReply.REJECT, { message: "Use the other file." });
  const { hasMarker, results } = await running;
  expect(hasMarker).toBe(false);
  expect(results.join()).toContain("Use the other file.");
});

test("an input that the approver edited is the one that runs", async () => {
  const running = runHttp({}, "touch other");
  await answerNext(service, PermissionReply.ONCE, { input: { command: "touch marker", description: "edited" } });
  // The edited command needs permission as well.
  await answerNext(service, PermissionReply.ONCE);
  expect(await running).toMatchObject({ hasMarker: true });
});

test("a tool that nobody answers in time, and one whose service is killed, do not run", async () => {
  expect(await runHttp({ timeout: 7 })).toMatchObject({ hasMarker: false });
  const doomed = await startService({ settings: hostTokens });
  const running = runHttp({ server: doomed.url }, undefined, doomed);
  await nextRequest(doomed);
  await doomed.kill();
  expect(await running).toMatchObject({ hasMarker: false });
});

test.each([
  ["status 500", 500, "broken"],
  ["an answer that is not JSON, with status 500", 500, "<html>"],
  ["an answer that is not JSON, with status 200", 200, "<html>"],
  ["an answer that is cut, with status 200", 200, '{"hookSpecificOutput":{"hookEventName":"PreTool'],
  ["an answer that is JSON of another shape, with status 200", 200, '["allow"]'],
  [
    "an answer with an unknown decision, with status 200",
    200,
    '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"perhaps"}}',
  ],
])("%s: the tool does not run", async (_name, status, body) => {
  expect(await runHttp({ server: await answering(status, body) })).toMatchObject({ hasMarker: false });
});

test.each(["{}", ""])(
  "control: %j with status 200 decides nothing, so the agent's own rule lets the tool run",
  async (body) => {
    expect(await runHttp({ server: await answering(200, body) })).toMatchObject({ hasMarker: true });
  },
);

test("a wrong token and a service that is away: the tool does not run", async () => {
  expect(await runHttp({ token: "no-token-of-this-service" })).toMatchObject({ hasMarker: false });
  expect(await runHttp({ server: "http://127.0.0.1:9" })).toMatchObject({ hasMarker: false });
});
