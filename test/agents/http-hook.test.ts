import { once } from "node:events";
import { existsSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { hostTokens } from "../e2e/host.ts";
import { createService, startService } from "../e2e/service.ts";
import { createPlace, runClaude } from "./agents.ts";
import { answerNext, claudeSettings, nextRequest } from "./connectors.ts";
import { serveAnthropic } from "./mock-models.ts";

const service = createService({ settings: hostTokens });
beforeAll(service.start);
afterAll(service.close);
afterEach(() => rmSync(join(service.workspace, "marker"), { force: true }));

/** Runs Claude Code with HTTP hooks, and a rule that lets the tool run without them. */
async function runHttp({
  url = service.url,
  token = "host-token-for-tests",
  workspace = service.workspace,
  timeout = 60,
}) {
  const place = await createPlace(workspace);
  const model = await serveAnthropic([["go", [{ tool: "Bash", input: { command: "touch marker" } }]]]);
  const headers = { Authorization: "Bearer $TOOLGATE_HOOK_TOKEN" };
  const hook = { type: "http", url: `${url}/hooks/claude?timeout=${timeout}`, headers, timeout, onFailure: "block" };
  const settings = await claudeSettings(place, { ...hook, allowedEnvVars: ["TOOLGATE_HOOK_TOKEN"] });
  const args = ["--settings", settings, "--allowedTools", "Bash"];
  await runClaude(place, model, args, { TOOLGATE_HOOK_TOKEN: token });
  return existsSync(join(workspace, "marker"));
}

test("an approved tool runs, a rejected one does not", async () => {
  const approved = runHttp({});
  await answerNext(service, PermissionReply.ONCE);
  expect(await approved).toBe(true);
  rmSync(join(service.workspace, "marker"));
  const rejected = runHttp({});
  await answerNext(service, PermissionReply.REJECT);
  expect(await rejected).toBe(false);
});

test("a tool that nobody answers in time, and one whose service is killed, do not run", async () => {
  expect(await runHttp({ timeout: 7 })).toBe(false);
  const doomed = await startService({ settings: hostTokens });
  const running = runHttp({ url: doomed.url, workspace: doomed.workspace });
  await nextRequest(doomed);
  await doomed.kill();
  expect(await running).toBe(false);
});

test.each([
  ["status 500", 500, "broken"],
  ["an answer that is not JSON, with status 500", 500, "<html>"],
])("%s: the tool does not run", async (_name, status, body) => {
  const server = createServer((_, response) => void response.writeHead(status).end(body)).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  expect(await runHttp({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` })).toBe(false);
});

test("a wrong token and a service that is away: the tool does not run", async () => {
  expect(await runHttp({ token: "no-token-of-this-service" })).toBe(false);
  expect(await runHttp({ url: "http://127.0.0.1:9" })).toBe(false);
});
