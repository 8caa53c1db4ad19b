import { readdirSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { processesNamed, untilDead } from "../tools/processes.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { startService } from "./service.ts";

test("after kill -9 of the service during commands, its next start leaves nothing of them on the host", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  await writeFile(join(service.workspace, "a.txt"), "a\n");
  const name = `left-${process.pid}-${Date.now()}`;
  const command = `mkdir -p pkg; touch /tmp/mine; exec -a ${name} sleep 600`;
  const streams = ["c1", "c2"].map((callId) =>
    read(agent.tools.executeTool({ callId, agent: "free", tool: "bash", input: { command } })),
  );
  for (const stream of streams)
    await stream.find(({ event }) => event.case === "part" && event.value.state.case === "running");
  const pids = await vi.waitUntil(
    async () => {
      const found = await processesNamed(name);
      return found.length === 2 && found;
    },
    { timeout: 60_000 },
  );
  expect(readdirSync(service.workspace), "control: placeholders exist").toContain(".vscode");
  await service.kill();
  for (const pid of pids) await untilDead(pid);
  expect(readdirSync(service.workspace)).toContain(".vscode");
  await service.start();
  expect(readdirSync(service.workspace).sort()).toEqual(["a.txt", "pkg"]);
});
