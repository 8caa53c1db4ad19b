import { existsSync, watch } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { untilDead } from "../tools/processes.ts";
import { connect } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { nameOf, read } from "./reading.ts";
import { startService, unconfined } from "./service.ts";

test("kill -9 while a tool runs: its end is EXECUTOR_LOST, its processes are dead, and it never runs again", async () => {
  const service = await startService({ settings: `lease_ms = 1000\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const input = { command: `${runs.append("ran")}; setsid sleep 600 & echo $!; wait` };
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input };
  const before = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await before.until("output")).data).toString());
  const cut = expect(before.end()).rejects.toThrow();
  await service.kill();
  await cut;
  await untilDead(pid);

  await service.start();
  const again = connect(service, "caller");
  const after = read(again.tools.executeTool({ ...call, afterSeq: before.lastSeq }));
  const part = await after.end();
  expect(part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
  });
  expect((await again.tools.callTool(call)).part).toEqual(part);
  expect(await runs.lines()).toHaveLength(1);
  const whole = read(again.tools.executeTool(call));
  await whole.end();
  expect([...before.seen, ...after.seen]).toEqual(whole.seen);
  expect(whole.seen.map(nameOf)).toEqual(["pending", "running", "output", "error"]);
});

test("kill -9 while an answer is given: it can be given again, and the call runs at most once", async () => {
  const service = await startService({ settings: `lease_ms = 1000\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: runs.append("ran") } };
  const before = read(agent.tools.executeTool(call));
  const { id: permissionId } = await before.until("permissionAsked");
  const answer = { sessionId, permissionId, reply: PermissionReply.ONCE, replyId: "r1" };
  const given = Promise.allSettled([
    connect(service, "approver").permissions.respondToPermission(answer),
    before.end(),
  ]);
  await service.kill();
  await given;
  await service.start();
  await connect(service, "approver").permissions.respondToPermission(answer);
  const { part } = await connect(service, "caller").tools.callTool(call);
  const end = part?.state.case === "error" ? part.state.value.reason : part?.state.case;
  // If it had started, what it did is not known.
  const most = { completed: [1], [ToolErrorReason.EXECUTOR_LOST]: [0, 1] }[String(end)];
  expect(most).toContain((await runs.lines()).length);
});

test("kill -9 in the middle of a patch: the call is EXECUTOR_LOST, and each file is as before or as after", async () => {
  const service = await startService({ settings: "lease_ms = 1000" });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const at = (name: string) => join(service.workspace, name);
  const lines = (word: string) => Array.from({ length: 20 }, (_, i) => `${word} ${i}`);
  const versions = new Map<string, { before: string | undefined; after: string | undefined; section: string[] }>();
  const text = (word: string) => `${lines(word).join("\n")}\n`;
  for (let i = 0; i < 800; i++) {
    const after = text(`new ${i}`);
    const added = ["*** Add File: ", ...lines(`new ${i}`).map((line) => `+${line}`)];
    const changed = ["*** Update File: ", "@@", ...lines("old").map((line) => `-${line}`), ...added.slice(1)];
    if (i % 100 === 0) versions.set(`${i}.txt`, { before: text("old"), after, section: changed });
    else if (i % 100 === 1)
      versions.set(`${i}.txt`, { before: text("old"), after: undefined, section: ["*** Delete File: "] });
    else versions.set(`${i}.txt`, { before: undefined, after, section: added });
  }
  for (const [name, { before }] of versions) {
    if (before === undefined) continue;
    await writeFile(at(name), before);
    await agent.tools.callTool({
      sessionId,
      callId: `r${name}`,
      agent: "free",
      tool: "read",
      input: { filePath: name },
    });
  }
  const sections = [...versions].map(([name, { section }]) => section.join("\n").replace(": ", `: ${name}`));
  const patchText = ["*** Begin Patch", ...sections, "*** End Patch"].join("\n");
  const call = { sessionId, callId: "c1", agent: "free", tool: "apply_patch", input: { patchText } };

  const changes = watch(service.workspace);
  const written = new Promise((resolve) => changes.on("change", resolve));
  const running = expect(agent.tools.callTool(call)).rejects.toThrow();
  await written;
  await service.kill();
  await running;
  changes.close();

  await service.start();
  const { part } = await connect(service, "caller").tools.callTool(call);
  expect(part?.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
  });
  const found = await Promise.all(
    [...versions].map(async ([name, { before, after }]) => {
      const now = existsSync(at(name)) ? await readFile(at(name), "utf8") : undefined;
      expect([before, after]).toContain(now);
      return now === after;
    }),
  );
  expect(found).toContain(false);
});

test("a command that the supervisor kills while the service is frozen ends EXECUTOR_LOST", async () => {
  const service = await startService({ settings: `lease_ms = 1000\n${unconfined}` });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "echo $$; exec sleep 600" } };
  const events = read(agent.tools.executeTool(call));
  const pid = Number(Buffer.from((await events.until("output")).data).toString());
  process.kill(service.pid ?? 0, "SIGSTOP");
  await untilDead(pid);
  process.kill(service.pid ?? 0, "SIGCONT");
  const { state } = await events.end();
  expect(state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN },
  });
});
