import { mkdir, rename, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply } from "../../gen/opencode/tool/v1/tool_pb.ts";
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
  return { first, again: event.case === "permissionAsked" ? event.value : undefined };
}

const command = { tool: "bash", input: { command: "./build.sh", workdir: "made" } };

async function prepare(settings = ""): Promise<Service> {
  const service = await startService({ settings, env: { LANG: "C" } });
  await mkdir(join(service.workspace, "made"));
  await writeFile(join(service.workspace, "made/build.sh"), "echo built\n", { mode: 0o755 });
  return service;
}

async function restart(service: Service): Promise<void> {
  await service.stop();
  await service.start();
}

test("nothing changes: one answer is enough, also over a restart", async () => {
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

test("the environment that a command gets", async () => {
  const service = await prepare();
  const { first, again } = await drift(service, command, async () => {
    await service.stop();
    service.env.LANG = "de_DE.UTF-8";
    await service.start();
  });
  expect(again?.digest).not.toBe(first.digest);
});

test("the configuration", async () => {
  const service = await prepare();
  const { first, again } = await drift(service, command, async () => {
    await service.configure('[permission]\nwebfetch = "deny"\n');
    await restart(service);
  });
  expect(again?.digest).not.toBe(first.digest);
});
