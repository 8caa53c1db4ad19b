import { mkdir, mkdtemp, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply, ToolEffects } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

/** Has a call asked, changes something while the person thinks, and answers once: what the call asks after that. */
async function drift(
  service: Service,
  call: { tool: string; input: Record<string, string> },
  change: () => Promise<unknown>,
) {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call1 = { sessionId, callId: "c1", ...call };
  const first = await read(agent.tools.executeTool(call1)).until("permissionAsked");
  await change();
  // The change may have been a restart: what waits is still the same ask.
  const person = connect(service, "approver");
  const stream = read(connect(service, "caller").tools.executeTool(call1));
  await stream.until("permissionAsked");
  const answer = { sessionId, permissionId: first.id, reply: Reply.ONCE, expectedDigest: first.digest };
  await person.permissions.respondToPermission(answer);
  const { event } = await stream.find(
    ({ event }) => event.case === "permissionAsked" || (event.case === "part" && event.value.state.case === "running"),
  );
  const outcomes = stream.seen.flatMap(({ event }) =>
    event.case === "permissionSettled" ? [event.value.outcome] : [],
  );
  expect(outcomes).toEqual([PermissionOutcome.ONCE]);
  return { first, sessionId, again: event.case === "permissionAsked" ? event.value : undefined };
}

const command = { tool: "bash", input: { command: "./build.sh", workdir: "made" } };

async function prepare(settings = ""): Promise<Service> {
  const service = await startService({ settings });
  await mkdir(join(service.workspace, "made"));
  await writeFile(join(service.workspace, "made/build.sh"), "echo built\n", { mode: 0o755 });
  return service;
}

async function restart(service: Service): Promise<void> {
  await service.stop();
  await service.start();
}

test("without a change one answer is enough, also across a restart", async () => {
  const service = await prepare();
  expect((await drift(service, command, () => restart(service))).again).toBeUndefined();
});

test("the file that will be written", async () => {
  const service = await prepare();
  const write = { tool: "write", input: { filePath: "new.txt", content: "new\n" } };
  const outside = join(service.data, "../elsewhere");
  await mkdir(outside);
  const { first, again } = await drift(service, write, async () => {
    await rm(join(service.workspace, "made"), { recursive: true });
    await symlink(outside, join(service.workspace, "new.txt"));
  });
  expect(again?.digest).not.toBe(first.digest);
});

test("the folder that a command runs in, under the same name", async () => {
  const service = await prepare();
  const { first, again } = await drift(service, command, async () => {
    await rename(join(service.workspace, "made"), join(service.workspace, "was"));
    await mkdir(join(service.workspace, "made"));
    await writeFile(join(service.workspace, "made/build.sh"), "echo built\n", { mode: 0o755 });
  });
  expect(again).toMatchObject({ patterns: first.patterns });
  expect(again?.digest).not.toBe(first.digest);
});

test("the script that a command runs, by whatever name", async () => {
  const service = await prepare();
  await mkdir(join(service.workspace, "tools"));
  await writeFile(join(service.workspace, "tools/x.sh"), "echo built\n");
  for (const [line, file] of [
    ["./build.sh", "made/build.sh"],
    ["bash build.sh --fast", "made/build.sh"],
    ["timeout 60 sh ../tools/x.sh", "tools/x.sh"],
  ] as const) {
    const call = { tool: "bash", input: { command: line, workdir: "made" } };
    const { first, again } = await drift(service, call, () =>
      writeFile(join(service.workspace, file), `echo ${line}\n`),
    );
    expect(again).toMatchObject({ patterns: first.patterns });
    expect(again?.digest).not.toBe(first.digest);
  }
});

test("the program that is found for a name: it is replaced, or another one comes before it", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-programs-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const programs = ["before", "behind"].map((name) => join(folder, name));
  for (const name of programs) await mkdir(name);
  const put = (at: number, text: string) => writeFile(join(programs[at] ?? "", "deploy"), text, { mode: 0o755 });
  await put(1, "#!/bin/sh\necho deployed\n");
  const service = await startService({ env: { PATH: [...programs, process.env.PATH].join(":") } });
  const call = { tool: "bash", input: { command: "deploy production" } };
  for (const change of [() => put(1, "#!/bin/sh\necho replaced\n"), () => put(0, "#!/bin/sh\necho replaced\n")]) {
    const { first, again } = await drift(service, call, change);
    expect(again).toMatchObject({ patterns: first.patterns });
    expect(again?.digest).not.toBe(first.digest);
  }
});

test("the environment: a service with another PATH asks again where that finds another program", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-programs-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const name of ["one", "other"]) {
    await mkdir(join(folder, name));
    await writeFile(join(folder, name, "deploy"), `#!/bin/sh\necho ${name}\n`, { mode: 0o755 });
  }
  const env = { PATH: `${join(folder, "one")}:${process.env.PATH}` };
  const service = await startService({ env });
  const { first, again } = await drift(service, { tool: "bash", input: { command: "deploy" } }, async () => {
    env.PATH = `${join(folder, "other")}:${process.env.PATH}`;
    await restart(service);
  });
  expect(again?.digest).not.toBe(first.digest);
});

test("what hooks add is fixed with the first plan: what runs is what was approved, whatever they would say by then", async () => {
  const service = await startService();
  await service.stop();
  const plugin = (word: string) =>
    writeFile(
      join(service.config, "../guard.ts"),
      `export const Guard = async () => ({
  "tool.execute.before": async (input, output) => { output.args.command += " ${word}"; },
  "shell.env": async (input, output) => { output.env.GREETING = "${word}"; },
});\n`,
    );
  await plugin("hello");
  await service.configure('plugin = ["guard.ts"]\n');
  await service.start();
  const call = { tool: "bash", input: { command: 'echo "$GREETING"' } };
  const { first, again, sessionId } = await drift(service, call, async () => {
    await plugin("bye");
    await restart(service);
  });
  expect(first.patterns).toEqual(['echo "$GREETING" hello']);
  expect(again).toBeUndefined();
  const part = await read(connect(service, "caller").tools.executeTool({ sessionId, callId: "c1", ...call })).end();
  expect(part.state).toMatchObject({ case: "completed", value: { output: "hello hello\n" } });
});

test("the content of a file that will be changed: what was shown is not what would happen, so nothing does", async () => {
  const service = await prepare();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const path = join(service.workspace, "notes.txt");
  await writeFile(path, "one\n");
  await read(
    agent.tools.executeTool({ sessionId, callId: "r1", tool: "read", input: { filePath: "notes.txt" } }),
  ).end();
  const input = { filePath: "notes.txt", oldString: "one", newString: "two" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "edit", input }));
  const { id, digest } = await stream.until("permissionAsked");
  await writeFile(path, "one, and more\n");
  const answer = { sessionId, permissionId: id, reply: Reply.ONCE, expectedDigest: digest };
  await connect(service, "approver").permissions.respondToPermission(answer);
  const { state } = await stream.end();
  expect(state).toMatchObject({ case: "error", value: { effects: ToolEffects.NONE } });
  expect(await readFile(path, "utf8")).toBe("one, and more\n");
});

test("the configuration", async () => {
  const service = await prepare();
  const { first, again } = await drift(service, command, async () => {
    await service.configure('[permission]\nwebfetch = "deny"\n');
    await restart(service);
  });
  expect(again?.digest).not.toBe(first.digest);
});
