import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fromJsonString } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startAtTerminal, toolgate } from "../cli/toolgate.ts";
import { connect } from "./clients.ts";
import { useReplicas } from "./replicas.ts";

const replicas = useReplicas();

test("top at one replica shows what runs and what waits at another, and its outcome", async () => {
  const {
    all: [first, second],
    workspace,
  } = replicas();
  const { tools, sessions } = connect(first, "caller");
  const sessionId = "ses_top";
  await sessions.createSession({ sessionId, title: "The busy one" });
  const call = (callId: string, agent: string, command: string) =>
    tools.callTool({ sessionId, callId, agent, tool: "bash", input: { command, description: callId }, waitMs: 0 });
  await call("waits", "build", "ls");
  await call("runs", "free", "until [ -e go ]; do sleep 0.05; done");

  const environment = { TOOLGATE_URL: second.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  const top = startAtTerminal(["top"], environment);
  onTestFinished(() => void top.child.kill("SIGKILL"));
  await top.sees("1 run, 1 wait");
  await top.sees("bash ls");
  await top.sees("The busy one");
  const { stdout } = await toolgate(["top", "--json"], environment);
  const parts = stdout
    .trimEnd()
    .split("\n")
    .map((line) => fromJsonString(ToolPartSchema, line));
  expect(parts.map(({ callId, state }) => `${callId} ${state.case}`).toSorted()).toEqual([
    "runs running",
    "waits pending",
  ]);

  await writeFile(join(workspace, "go"), "");
  await top.sees("0 run, 1 wait");
  await tools.cancelTool({ sessionId, callId: "waits" });
  await top.sees("0 run, 0 wait");
  top.child.stdin?.write("q");
  expect(await top.finished).toMatchObject({ code: 0 });
});
