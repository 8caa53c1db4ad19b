import { beforeAll, expect, test } from "vitest";
import type { WatchPermissionsResponse } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, kinds, type Opens } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { nameOf, read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();
const before = new Map<Opens, Awaited<ReturnType<typeof ask>>>();

/** Calls of all clients wait for a person when the service is killed. */
beforeAll(async () => {
  for (const open of Object.values(kinds)) before.set(open, await ask(open));
  const cuts = [...before.values()].map(({ stream }) => expect(stream.end()).rejects.toThrow());
  await service.kill();
  await Promise.all(cuts);
  await service.start();
});

test.concurrent.each(Object.entries(kinds))(
  "%s: after kill -9 the ask is still there, its answer counts, and the call runs once",
  async (_name, open) => {
    const { sessionId, call, runs, stream, asked } = before.get(open) ?? (await ask(open));
    const [agent, person] = [connect(service, "caller", open), connect(service, "approver", open)];
    expect((await person.permissions.listPermissions({ sessionId })).permissions).toEqual([asked]);
    const [shown] = await Array.fromAsync(untilMark(person.permissions.watchPermissions({ sessionId })));
    expect(shown?.event?.event.value).toEqual(asked);
    const after = read(agent.tools.executeTool({ ...call, afterSeq: stream.lastSeq }));
    await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply: PermissionReply.ONCE });
    expect((await after.end()).state).toMatchObject({ case: "completed", value: { output: "done\n" } });
    expect(await runs.lines()).toHaveLength(1);

    const whole = read(agent.tools.executeTool(call));
    await whole.end();
    expect([...stream.seen, ...after.seen]).toEqual(whole.seen);
    expect(whole.seen.filter((event) => nameOf(event) === "permissionAsked")).toHaveLength(1);
  },
);

async function* untilMark(stream: AsyncIterable<WatchPermissionsResponse>) {
  for await (const message of stream) {
    if (message.snapshotEnd) return;
    yield message;
  }
}

async function ask(open: Opens) {
  const agent = connect(service, "caller", open);
  const sessionId = await agent.newSession();
  const runs = ledger(service);
  const call = { sessionId, callId: "c1", tool: "bash", input: { command: `${runs.append("ran")}; echo done` } };
  const stream = read(agent.tools.executeTool(call));
  return { sessionId, call, runs, stream, asked: await stream.until("permissionAsked") };
}
