import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createService, type Service, startService } from "../e2e/service.ts";
import { answerNext, nextRequest } from "./connectors.ts";
import { type McpTransport, mcpAgents, runMcp, untilItRuns } from "./mcp-clients.ts";

const rules = '[permission.bash]\n"*" = "ask"\n"echo *" = "allow"\n';
const holds = (ms: number) => `mcp_hold_ms = ${ms}\n[mcp_hold."claude-code"]\nstdio_ms = ${ms}\n`;

const service = createService({ settings: `${holds(30_000)}${rules}` });
beforeAll(service.start);
afterAll(service.close);
afterEach(() => rmSync(join(service.workspace, "marker"), { force: true }));

const hasMarker = ({ workspace }: Service) => existsSync(join(workspace, "marker"));
const touch = { command: "touch marker; echo made it", description: "leaves a marker" };
const transports: McpTransport[] = ["stdio", "HTTP"];

describe.each(
  Object.entries(mcpAgents).flatMap(([name, agent]) => transports.map((transport) => ({ name, agent, transport }))),
)("$name over $transport", ({ agent, transport }) => {
  const run = ({ url, workspace }: Service, limitMs?: number) => {
    const place = { url, workspace, ...(limitMs !== undefined && { limitMs }) };
    return runMcp(agent, transport, place, [{ tool: agent.toolName("bash"), input: touch }]);
  };

  test("an allowed call runs, and the model reads its output", async () => {
    const echo = { tool: agent.toolName("bash"), input: { command: "echo one two", description: "prints" } };
    const { results } = await runMcp(agent, transport, service, [echo]);
    expect(results).toEqual([expect.stringContaining("one two")]);
  });

  test("an approved call runs, and the model reads its output", async () => {
    const running = run(service);
    await answerNext(service, PermissionReply.ONCE);
    expect((await running).results).toEqual([expect.stringContaining("made it")]);
    expect(hasMarker(service)).toBe(true);
  });

  test("a rejected call does not run, and the model reads the advice", async () => {
    const running = run(service);
    await answerNext(service, PermissionReply.REJECT, { message: "Use the other file." });
    expect((await running).results).toEqual([expect.stringContaining("Use the other file.")]);
    expect(hasMarker(service)).toBe(false);
  });

  test("a call that outlives its hold runs after the approval, and toolgate_wait returns its output", async () => {
    const hasty = await startService({ settings: `${holds(1_000)}${rules}` });
    const waits = untilItRuns(agent, "bash", touch);
    const { promise: waited, resolve: wait } = Promise.withResolvers<void>();
    const running = runMcp(agent, transport, hasty, (results) => {
      if (results.length > 0) wait();
      return waits(results);
    });
    await waited;
    expect(hasMarker(hasty)).toBe(false);
    await answerNext(hasty, PermissionReply.ONCE);
    const { results } = await running;
    expect(results[0]).toContain("Nothing has run yet");
    expect(results.at(-1)).toContain("made it");
    expect(hasMarker(hasty)).toBe(true);
  });

  test("a service that is killed while a call waits: nothing runs, and the model reads why", async () => {
    const doomed = await startService({ settings: `${holds(5_000)}${rules}` });
    const running = run(doomed, 15_000);
    await nextRequest(doomed);
    await doomed.kill();
    expect((await running).results).toEqual([expect.stringMatching(lostTexts)]);
    expect(hasMarker(doomed)).toBe(false);
  });
});

/** Over stdio our program reports the loss; over HTTP the agent does, by another text if the answer had not begun. */
const lostTexts =
  /connection to Toolgate was lost|connection closed before the tool call was answered|Request timed out|socket connection was closed/;
