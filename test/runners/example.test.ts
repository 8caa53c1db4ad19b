import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { expect, onTestFinished, test } from "vitest";
import { connect } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";

const root = resolve(import.meta.dirname, "../..");

test("examples/agent-runner.ts runs a task, also after a restart of the service", async () => {
  const service = await startService({
    settings: '[permission.task]\n"explore" = "allow"\n',
    flags: ["--listen", `127.0.0.1:${20_000 + (process.pid % 10_000)}`],
  });
  await writeFile(join(service.workspace, "notes.txt"), "");
  const runner = spawn(process.execPath, ["examples/agent-runner.ts"], {
    cwd: root,
    env: { ...process.env, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" },
    stdio: ["ignore", "pipe", "ignore"],
  });
  onTestFinished(async () => {
    const exited = once(runner, "exit");
    runner.kill();
    await exited;
  });
  const lines = createInterface(runner.stdout)[Symbol.asyncIterator]();

  for (const callId of ["t1", "t2"]) {
    expect((await lines.next()).value).toMatch(/^connected as /);
    const { tools, newSession } = connect(service, "caller");
    const sessionId = await newSession();
    const input = { description: "Look", prompt: "What is there?", agent: "explore" };
    const { part } = await tools.callTool({ sessionId, callId, tool: "task", waitMs: 60_000, input });
    expect(part?.state).toMatchObject({
      case: "completed",
      value: { output: expect.stringContaining("You asked: What is there?\nThe workspace has:\n") },
    });
    expect(part?.state.case === "completed" && part.state.value.output).toContain("notes.txt");
    if (callId === "t1") {
      await service.kill();
      await service.start();
    }
  }
});
