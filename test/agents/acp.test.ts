import { existsSync, mkdtempSync, readlinkSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, expect, test } from "vitest";
import { PermissionReply, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { killIfAlive, processesNamed } from "../tools/processes.ts";
import { configureOpencode, opencodeEnv } from "./agents.ts";
import { answerNext, nextRequest } from "./connectors.ts";
import { type Script, serveOpenAi } from "./mock-models.ts";
import { agentPrograms } from "./programs.ts";

const home = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-acp-")));
afterAll(() => rmSync(home, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 }));

const service = useService({
  env: { HOME: home, ...opencodeEnv },
  settings: `
[permission]
"task" = "allow"
[agent.opencode]
[agent_runner.opencode]
command = "${agentPrograms.opencode}"
args = ["acp"]
env = ${JSON.stringify(Object.keys(opencodeEnv))}
agents = ["opencode"]
[sandbox]
# Of the temporary directory, below which the checkout may lie, programs see only what is named.
writable = ${JSON.stringify([home, join(import.meta.dirname, "../..")])}
# The mock model is a server of this machine.
[sandbox.agent.opencode]
network = "open"
`,
});
const marker = () => join(service.workspace, "marker");
afterEach(() => rmSync(marker(), { force: true }));

/** Starts a task at opencode, whose model takes these steps; its own tools ask, those of Toolgate do not. */
async function start(steps: Script[number][1]) {
  const model = await serveOpenAi([["go", steps]]);
  await configureOpencode({ home }, model, { permission: { "*": "ask", "toolgate_*": "allow" } });
  const clients = connect(service, "caller");
  const sessionId = await clients.newSession();
  const input = { description: "x", prompt: "go", agent: "opencode" };
  const call = { sessionId, callId: "t1", tool: "task", waitMs: 60_000, input };
  const end = async (): Promise<ToolPart> => {
    // A cold opencode takes longer than one response may wait; the same call again attaches to it.
    for (;;) {
      const { part } = await clients.tools.callTool(call);
      if (part?.state.case === "completed" || part?.state.case === "error") return part;
    }
  };
  return { results: model.results, ended: end() };
}

const touch = { tool: "bash", input: { command: "touch marker; echo made it", description: "leaves a marker" } };
const textOf = ({ state }: ToolPart) =>
  state.case === "completed" ? state.value.output : state.case === "error" ? state.value.error : "";
const callsOf = async ({ childSessionId: sessionId }: ToolPart) =>
  (await connect(service, "watcher").tools.listToolParts({ sessionId })).parts;

test("a tool of opencode that is approved runs, and its result is recorded", async () => {
  const task = await start([touch]);
  const request = await answerNext(service, PermissionReply.ONCE);
  expect(request).toMatchObject({ permission: "bash", preview: { command: touch.input.command } });
  const ended = await task.ended;
  expect(existsSync(marker())).toBe(true);
  expect(textOf(ended)).toMatch(/done.*1 uses of the agent's own tools asked here; none that it reported ran without/s);
  expect(await callsOf(ended)).toMatchObject([
    { tool: "acp:execute", reportedBy: "caller", state: { case: "completed", value: { metadata: { exit: 0 } } } },
  ]);
});

test("a tool of opencode that is rejected does not run", async () => {
  const task = await start([touch]);
  await answerNext(service, PermissionReply.REJECT);
  expect(textOf(await task.ended)).toContain("of which 1 were refused (execute)");
  expect(existsSync(marker())).toBe(false);
});

test("a change by opencode shows the difference, and is made once", async () => {
  const task = await start([{ tool: "write", input: { filePath: marker(), content: "made by opencode" } }]);
  const request = await answerNext(service, PermissionReply.ONCE);
  expect(request).toMatchObject({ permission: "edit", patterns: ["marker"] });
  expect(request.preview?.diff).toContain("+made by opencode");
  expect(await callsOf(await task.ended)).toHaveLength(1);
  expect(existsSync(marker())).toBe(true);
});

test("opencode calls the tools of Toolgate in the child session", async () => {
  const task = await start([{ tool: "toolgate_glob", input: { pattern: "*" } }]);
  const ended = await task.ended;
  expect(await callsOf(ended)).toMatchObject([{ tool: "glob", agent: "opencode", state: { case: "completed" } }]);
  expect(task.results).toHaveLength(1);
});

test("an opencode that is killed fails the task, and what it asked is closed", async () => {
  const task = await start([touch]);
  const { id: permissionId } = await nextRequest(service);
  const all = await processesNamed(agentPrograms.opencode);
  // Others run for other tests at the same time.
  const own = all.filter((pid) => readlinkSync(`/proc/${pid}/cwd`) === service.workspace);
  expect(own).not.toEqual([]);
  for (const pid of own) killIfAlive(pid);
  const ended = await task.ended;
  expect(ended.state.value).toMatchObject({ reason: ToolErrorReason.FAILED });
  expect(textOf(ended)).toContain("its program ended before its turn did");
  const { settled } = await connect(service, "approver").permissions.getPermission({ permissionId });
  expect(settled).toBeDefined();
  expect(existsSync(marker())).toBe(false);
});
