import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { WatchManyResponse, WatchSessionResponse } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { isTerminal } from "../../src/call/state.ts";
import { stores, useServiceOn } from "../console/stores.ts";
import { type Clients, connect, kinds, refusal } from "./clients.ts";
import { read } from "./reading.ts";

type Watches = Parameters<Clients["tools"]["watchMany"]>[0]["watches"];

const session = (key: string, value: Parameters<Clients["tools"]["watchSession"]>[0]) => ({
  key,
  watch: { case: "session" as const, value },
});
const asks = (key: string, sessionId = "") => ({ key, watch: { case: "permissions" as const, value: { sessionId } } });

describe.each(stores)("several watches on one stream, on %s", (store) => {
  const service = useServiceOn(store);

  async function sessionWithHistory(agent: Clients) {
    const sessionId = await agent.newSession();
    const call = { sessionId, agent: "free", tool: "bash" };
    await agent.tools.callTool({ ...call, callId: "c1", input: { command: "echo one; echo two" } });
    await agent.tools.callTool({ ...call, callId: "c2", input: { command: "exit 3" } });
    await read(agent.tools.executeTool({ ...call, callId: "c3", agent: "build", input: { command: "true" } })).until(
      "permissionAsked",
    );
    return sessionId;
  }

  test.each(Object.entries(kinds))("%s: each watch gets what its rpc would send", async (_name, open) => {
    const { tools, permissions } = connect(service(), "approver", open);
    const sessionId = await sessionWithHistory(connect(service(), "caller"));
    const requests = {
      all: { sessionId },
      later: { sessionId, afterSeq: 4n },
      own: { sessionId, callId: "c2" },
      now: { sessionId, snapshot: true },
    };
    const isAsked = ({ event, snapshotEnd }: Told) => snapshotEnd || event?.event.case === "permissionAsked";
    const expected = {
      all: await take(tools.watchSession(requests.all), isAsked),
      later: await take(tools.watchSession(requests.later), isAsked),
      own: await take(tools.watchSession(requests.own), ({ event }) => event !== undefined && isDone(event)),
      now: await take(tools.watchSession(requests.now), ({ snapshotEnd }) => snapshotEnd),
      asks: await take(permissions.watchPermissions({ sessionId }), ({ snapshotEnd }) => snapshotEnd),
    };
    for (const { event } of expected.now) if (event) event.time = 0;
    const watches = Object.entries(requests).map(([key, value]) => session(key, value));
    const missing = new Map(Object.entries(expected).map(([key, { length }]) => [key, length]));
    const received: Record<string, unknown[]> = { all: [], later: [], own: [], now: [], asks: [] };
    for await (const { key, frame } of tools.watchMany({ watches: [...watches, asks("asks", sessionId)] })) {
      const left = missing.get(key);
      if (left === undefined) continue;
      // The events of a snapshot are made when it is asked for.
      if (key === "now" && frame.case === "session" && frame.value.event) frame.value.event.time = 0;
      received[key]?.push(frame.value);
      if (left === 1) missing.delete(key);
      else missing.set(key, left - 1);
      if (missing.size === 0) break;
    }
    expect(received).toEqual(expected);
    expect(expected.all.length).toBeGreaterThan(8);
  });

  test("every watch is silent for no longer than the client asked for", async () => {
    const { tools } = connect(service(), "approver");
    const sessionId = await sessionWithHistory(connect(service(), "caller"));
    const beats = new Map([
      ["asks", 0],
      ["one", 0],
    ]);
    const watches = [asks("asks", sessionId), session("one", { sessionId })];
    const isBeat = ({ event, snapshotEnd }: Told) => event === undefined && !snapshotEnd;
    for await (const { key, frame } of tools.watchMany({ watches, heartbeatMs: 1_000 })) {
      if (frame.case !== "end" && frame.value !== undefined && isBeat(frame.value))
        beats.set(key, (beats.get(key) ?? 0) + 1);
      if ([...beats.values()].every((count) => count >= 2)) return;
    }
  }, 14_000);

  test.each([999, 15_001])("a silence of %i ms is refused", async (heartbeatMs) => {
    const { tools } = connect(service(), "approver");
    const refused = await refusal(Array.fromAsync(tools.watchMany({ watches: [asks("asks")], heartbeatMs })));
    expect(refused).toMatchObject({ code: Code.InvalidArgument, reason: "INVALID_MESSAGE" });
  });

  test("each watch resumes after its number, without a gap", async () => {
    const agent = connect(service(), "caller");
    const ids = [await sessionWithHistory(agent), await sessionWithHistory(agent)];
    const seen = new Map(ids.map((id): [string, bigint[]] => [id, []]));
    const watch = async (until: (id: string) => bigint) => {
      const watches = ids.map((sessionId) =>
        session(sessionId, { sessionId, afterSeq: seen.get(sessionId)?.at(-1) ?? 0n }),
      );
      for await (const { key, frame } of agent.tools.watchMany({ watches })) {
        if (frame.case === "session" && frame.value.event) seen.get(key)?.push(frame.value.event.seq);
        if (ids.every((id) => (seen.get(id)?.at(-1) ?? 0n) >= until(id))) return;
      }
    };
    await watch((id) => (id === ids[0] ? 2n : 5n));
    const ends = new Map<string, bigint>();
    for (const sessionId of ids) {
      await agent.tools.callTool({ sessionId, callId: "c4", tool: "echo", input: { text: "meanwhile" } });
      ends.set(sessionId, (await agent.sessions.getSession({ sessionId })).session?.lastSeq ?? 0n);
    }
    await watch((id) => ends.get(id) ?? 0n);
    for (const [id, seqs] of seen)
      expect(seqs).toEqual(Array.from({ length: Number(ends.get(id)) }, (_, i) => BigInt(i + 1)));
  });

  test("a watch that fails ends as its rpc would; the others continue", async () => {
    const agent = connect(service(), "caller");
    const stranger = connect(service(), "stranger");
    const sessionId = await sessionWithHistory(agent);
    const foreign = await stranger.newSession();
    const wrong = {
      missing: { sessionId: "ses_none" },
      foreign: { sessionId: foreign },
      beyond: { sessionId, afterSeq: 1_000n },
    };
    const watches = Object.entries(wrong).map(([key, value]) => session(key, value));
    const messages = agent.tools
      .watchMany({ watches: [...watches, session("good", { sessionId })] })
      [Symbol.asyncIterator]();
    const ends = new Map<string, WatchManyResponse["frame"]["value"]>();
    const next = async () => {
      const { value } = await messages.next();
      if (value?.frame.case === "end") ends.set(value.key, value.frame.value);
      return value;
    };
    while (ends.size < 3) await next();
    for (const [key, value] of Object.entries(wrong)) {
      const { code, message, error } = await refusal(read(agent.tools.watchSession(value)).end());
      const [{ reason = "", metadata = {} } = {}] = error.findDetails(ErrorInfoSchema);
      const sent = ErrorReason[reason as keyof typeof ErrorReason];
      expect(ends.get(key)).toMatchObject({ code, message, reason: sent, metadata });
    }
    await agent.tools.callTool({ sessionId, callId: "later", tool: "echo", input: { text: "later" } });
    for (;;) {
      const frame = (await next())?.frame;
      const received = frame?.case === "session" ? frame.value.event?.event : undefined;
      if (received?.case === "part" && received.value.callId === "later" && received.value.state.case === "completed")
        break;
    }
    await messages.return?.();
  });

  test("the stream ends without error when the last watch has ended", async () => {
    const { tools } = connect(service(), "watcher");
    const watches = [session("a", { sessionId: "ses_none" }), session("b", { sessionId: "ses_none" })];
    const messages = await Array.fromAsync(tools.watchMany({ watches }));
    expect(messages.map(({ key, frame }) => `${key} ${frame.case}`).toSorted()).toEqual(["a end", "b end"]);
  });

  test("a caller gets only the asks of its sessions", async () => {
    const [agent, stranger] = [connect(service(), "caller"), connect(service(), "stranger")];
    const call = { callId: "c1", tool: "bash", input: { command: "true" }, waitMs: 0 };
    const theirs = await agent.newSession();
    const own = await stranger.newSession();
    for (const [who, sessionId] of [
      [agent, theirs],
      [stranger, own],
    ] as const) {
      const { permissions } = connect(service(), "approver");
      await who.tools.callTool({ ...call, sessionId });
      await expect.poll(async () => (await permissions.listPermissions({ sessionId })).permissions.length).toBe(1);
    }
    const received: string[] = [];
    for await (const { frame } of stranger.tools.watchMany({ watches: [asks("asks")] })) {
      if (frame.case !== "permissions" || frame.value.snapshotEnd) break;
      received.push(frame.value.event?.sessionId ?? "");
    }
    expect(received).toEqual([own]);
  });

  test.each<[string, Watches, string]>([
    ["nothing to watch", [], "watches"],
    ["a watch of nothing", [{ key: "a" }], "watches.watch"],
    ["a session without a name", [session("a", {})], "watches.session.session_id"],
  ])("%s is refused, with the field that is wrong", async (_name, watches, field) => {
    const { tools } = connect(service(), "watcher");
    expect(await refusal(Array.fromAsync(tools.watchMany({ watches: watches ?? [] })))).toMatchObject({
      code: Code.InvalidArgument,
      reason: "INVALID_MESSAGE",
      metadata: { field },
    });
  });
});

type Told = Pick<WatchSessionResponse, "event" | "snapshotEnd">;

const isDone = (event: SessionEvent) => event.event.case === "part" && isTerminal(event.event.value);

async function take<M>(stream: AsyncIterable<M>, isLast: (message: M) => boolean): Promise<M[]> {
  const messages: M[] = [];
  for await (const message of stream) {
    messages.push(message);
    if (isLast(message)) break;
  }
  return messages;
}
