import { expect, test } from "vitest";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type Clients, connect } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { nameOf, read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

const rounds = 3;
const workers = 4;

test("what was acknowledged before a kill -9 is there after it, and nothing ran twice", async () => {
  const service = await startService({ settings: "lease_ms = 1000" });
  const power = createPower(service);
  const { newSession } = connect(service, "caller");
  const histories = await Promise.all(
    Array.from({ length: workers }, async () => createHistory(service, await newSession())),
  );
  const stop = new AbortController();
  const working = histories.map((history) => work(power, history, stop.signal));
  for (let round = 1; round <= rounds; round += 1) {
    await Promise.race([Promise.all(histories.map((history) => history.until(round * 4))), Promise.all(working)]);
    await power.cycle();
  }
  stop.abort();
  await Promise.all(working);

  for (const history of histories) {
    expect(history.parts.length).toBeGreaterThanOrEqual(rounds * 4);
    await check(connect(service, "caller"), history);
  }
});

/** Responses that one worker received. */
function createHistory(service: Service, sessionId: string) {
  const parts: ToolPart[] = [];
  const waiting = new Map<number, () => void>();
  return {
    sessionId,
    runs: ledger(service),
    /** The calls whose end was acknowledged, in order. */
    parts,
    /** The answers that were acknowledged: ask → reply_id. */
    answers: new Map<string, string>(),
    add(part: ToolPart): void {
      parts.push(part);
      waiting.get(parts.length)?.();
    },
    /** Resolves when so many calls have ended. */
    until: (count: number) =>
      new Promise<void>((resolve) => {
        if (parts.length >= count) resolve();
        else waiting.set(count, resolve);
      }),
  };
}

type History = ReturnType<typeof createHistory>;

/** Kills and starts the service, and lets clients try again what that interrupted. */
function createPower(service: Service) {
  let generation = 0;
  let back = Promise.resolve();
  let clients = connectBoth();
  function connectBoth() {
    return { agent: connect(service, "caller"), person: connect(service, "approver") };
  }
  return {
    async cycle(): Promise<void> {
      generation += 1;
      back = service
        .kill()
        .then(service.start)
        .then(() => {
          clients = connectBoth();
        });
      await back;
    },
    /** Repeats the attempt for as long as the service is killed under it; any other failure is one. */
    async insist<T>(attempt: (both: typeof clients) => Promise<T>): Promise<T> {
      for (;;) {
        await back;
        const begun = generation;
        try {
          return await attempt(clients);
        } catch (error) {
          if (begun === generation) throw error;
        }
      }
    },
  };
}

/** Calls one after the other, each repeated with the same ids until its end is known; every third one asks. */
async function work(power: ReturnType<typeof createPower>, history: History, stop: AbortSignal): Promise<void> {
  const { sessionId, runs } = history;
  for (let i = 0; !stop.aborted; i += 1) {
    const kinds = [
      { tool: "echo", input: { text: "hello" } },
      { tool: "bash", agent: "free", input: { command: runs.append(`c${i}`) } },
      { tool: "bash", input: { command: runs.append(`c${i}`) } },
    ];
    const call = { sessionId, callId: `c${i}`, ...kinds[i % kinds.length] };
    history.add(await power.insist(({ agent, person }) => callAndAnswer(agent, person, call, history.answers)));
  }
}

async function callAndAnswer(
  agent: Clients,
  person: Clients,
  call: { sessionId: string; callId: string },
  answers: Map<string, string>,
): Promise<ToolPart> {
  const stream = read(agent.tools.executeTool(call));
  const isEnd = (event: SessionEvent) => ["completed", "error"].includes(nameOf(event));
  const { event } = await stream.find((event) => isEnd(event) || nameOf(event) === "permissionAsked");
  if (event.case === "part") return event.value;
  if (event.case !== "permissionAsked") return await stream.end();
  const { id: permissionId, sessionId } = event.value;
  const replyId = `reply to ${call.callId}`;
  await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE, replyId });
  answers.set(permissionId, replyId);
  return await stream.end();
}

/** The log has no gap, every call one end and at most one run, and all that was acknowledged is in it. */
async function check(agent: Clients, { sessionId, parts, answers, runs }: History): Promise<void> {
  const last = (await agent.sessions.getSession({ sessionId })).session?.lastSeq;
  const log = read(agent.tools.watchSession({ sessionId }));
  await log.find(({ seq }) => seq === last);
  expect(log.seen.map(({ seq }) => Number(seq))).toEqual(log.seen.map((_, i) => i + 1));
  const settled = log.seen.flatMap(({ event }) => (event.case === "permissionSettled" ? [event.value] : []));
  expect(settled.map(({ permissionId, replyId, outcome }) => [permissionId, replyId, outcome])).toEqual(
    [...answers].map(([permissionId, replyId]) => [permissionId, replyId, PermissionOutcome.ONCE]),
  );
  const states = (callId: string) =>
    log.seen.flatMap((event) =>
      event.event.case === "part" && event.event.value.callId === callId ? [nameOf(event)] : [],
    );
  for (const part of parts) {
    expect((await agent.tools.getToolPart({ sessionId, callId: part.callId })).part).toEqual(part);
    // Only echo is declared idempotent, so it alone may be started again.
    const path = part.tool === "echo" ? /^pending( running){1,3} \w+$/ : /^pending running \w+$/;
    expect(states(part.callId).join(" ")).toMatch(path);
    expect(states(part.callId).at(-1)).toBe(part.state.case);
  }
  const ran = await runs.lines();
  expect(ran.length).toBe(new Set(ran).size);
  const finished = parts.filter(({ tool, state }) => tool === "bash" && state.case === "completed");
  expect(ran).toEqual(expect.arrayContaining(finished.map(({ callId }) => callId)));
}
