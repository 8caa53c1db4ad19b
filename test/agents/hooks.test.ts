import { once } from "node:events";
import { rmSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer as createHttp2Server, type ServerHttp2Stream } from "node:http2";
import { type AddressInfo, createServer, type Server } from "node:net";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { clientOf } from "../e2e/clients.ts";
import { hostTokens } from "../e2e/host.ts";
import { createService, startService } from "../e2e/service.ts";
import { answerNext, connectors, nextRequest, ownProgram, runTool } from "./connectors.ts";

const service = createService({ settings: hostTokens });
beforeAll(service.start);
afterAll(service.close);
afterEach(() => rmSync(join(service.workspace, "marker"), { force: true }));

const right = () => ({ server: service.url, token: "host-token-for-tests", timeout: 660, program: ownProgram });

/** Returns the calls of all sessions. */
async function allParts(): Promise<ToolPart[]> {
  const { sessions } = await clientOf(SessionService, service.url, "admin-token-for-tests").listSessions({});
  const tools = clientOf(ToolService, service.url, "admin-token-for-tests");
  const pages = await Promise.all(sessions.map(({ id }) => tools.listToolParts({ sessionId: id })));
  return pages.flatMap(({ parts }) => parts);
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

describe.each(Object.entries(connectors))("%s", (name, connector) => {
  test("control: without it the tool runs", async () => {
    expect(await runTool(connector, service.workspace)).toMatchObject({ hasMarker: true });
  });

  test("an approved tool runs, and its result is reported", async () => {
    const running = runTool(connector, service.workspace, right());
    const { sessionId } = await answerNext(service, PermissionReply.ONCE);
    expect(await running).toMatchObject({ hasMarker: true });
    const part = (await allParts()).find((each) => each.sessionId === sessionId);
    // The prompt tool learns of no result.
    const isReported = !name.includes("prompt tool");
    expect(part?.reportedBy).toBe(isReported ? "host" : "");
    expect(part?.state.case).toBe(isReported ? "completed" : "running");
  });

  test("an input that the approver edited is the one that runs", async () => {
    const running = runTool(connector, service.workspace, right(), "touch other");
    await answerNext(service, PermissionReply.ONCE, { input: { command: "touch marker", description: "edited" } });
    // The edited command needs permission as well.
    await answerNext(service, PermissionReply.ONCE);
    expect(await running).toMatchObject({ hasMarker: true });
  });

  test("a rejected tool does not run, and the model reads the advice", async () => {
    const running = runTool(connector, service.workspace, right());
    await answerNext(service, PermissionReply.REJECT, { message: "Use the other file." });
    const { hasMarker, results } = await running;
    expect(hasMarker).toBe(false);
    expect(results.join()).toContain("Use the other file.");
  });

  test("a tool that nobody answers in time does not run", async () => {
    const { hasMarker, results } = await runTool(connector, service.workspace, { ...right(), timeout: 7 });
    expect(hasMarker).toBe(false);
    expect(results.join()).toContain("not answered yet");
    await answerNext(service, PermissionReply.REJECT);
  });

  test("a service that is killed while a tool waits", async () => {
    const doomed = await startService({ settings: hostTokens });
    const running = runTool(connector, doomed.workspace, { ...right(), server: doomed.url, timeout: 15 });
    await nextRequest(doomed);
    await doomed.kill();
    expect(await running).toMatchObject({ hasMarker: false });
  });

  test.each([
    ["a service that is away", async () => ({ server: "http://127.0.0.1:9" })],
    ["a wrong token", async () => ({ token: "no-token-of-this-service" })],
    ["a token of another role", async () => ({ token: "approver-token-for-tests" })],
    ["a missing program", async () => ({ program: ["/nonexistent/toolgate"] })],
    ["a program that fails", async () => ({ program: ["false"] })],
    ["status 500", async () => ({ server: await listening(answering(500, Buffer.from("broken"))) })],
    ["a malformed answer", async () => ({ server: await listening(answering(200, Buffer.from("garbage"))) })],
    [
      "an answer that is not HTTP/2",
      async () => ({ server: await listening(createHttpServer((_, response) => void response.writeHead(500).end())) }),
    ],
    ["a service that never answers", async () => ({ server: await listening(createServer()), timeout: 3 })],
  ])("%s: the tool does not run", async (_fault, wrong) => {
    const run = await runTool(connector, service.workspace, { ...right(), ...(await wrong()) });
    expect(run.hasMarker).toBe(false);
    // The model learns of the refusal, unless the agent ends because its permission prompt tool is missing.
    expect(run.results.length === 1 || run.code !== 0).toBe(true);
  });
});
