import { randomBytes } from "node:crypto";
import { inspect } from "node:util";
import type { JsonObject } from "@bufbuild/protobuf";
import {
  CallFailed,
  connect,
  type PermissionRequest,
  ToolErrorReason,
  type ToolgateClient,
  type ToolPart,
} from "../../src/client/client.ts";
import { type KitService, tokenOf } from "./kit-service.ts";
import type { KitConnection, KitWire, Seen } from "./kit-wire.ts";
import { type KitCommand, type KitWorker, startKitWorker } from "./kit-worker.ts";

/** A golden case. */
export interface KitCase {
  readonly name: string;
  /** Required of each worker. The others need plans, requests of bodies or attachments. */
  readonly isCore: boolean;
  /** The rule that a failure breaks, from docs/worker-conformance.md. */
  readonly rule: string;
  run(kit: Kit): Promise<void>;
}

/** A worker did something else than a case expects. */
export class Unexpected extends Error {
  readonly expected: string;
  readonly seen: string;
  constructor(expected: string, seen: string) {
    super(`expected ${expected}; seen: ${seen}`);
    this.expected = expected;
    this.seen = seen;
  }
}

/** A call that was made. */
export interface KitCall {
  readonly sessionId: string;
  readonly callId: string;
  /** Resolves when its session exists. */
  readonly opened: Promise<unknown>;
  /** Waits for its end, but not longer than the time of one wait. */
  end(): Promise<ToolPart>;
}

/** Everything that a case works with. */
export interface Kit {
  readonly timeoutMs: number;
  /** Starts a process of the worker, and waits until it is welcome. */
  startWorker(prepare?: (wire: KitWire) => void, service?: KitService): Promise<KitWorker>;
  /** Makes a call in the workspace of the case. */
  call(tool: string, input: JsonObject, options?: { timeoutMs?: number; service?: KitService }): KitCall;
  /** Client of the service, as the caller or as an approver. */
  client(role: "caller" | "approver", service?: KitService): ToolgateClient;
  /** Waits for the open permission request of a call. */
  untilAsked(call: KitCall, permission: string, patterns: string): Promise<PermissionRequest>;
  /** Answers the open permission request of a call. */
  reply(call: KitCall, permission: string, patterns: string, reply: "once" | "reject"): Promise<void>;
  /** Waits until a probe returns something; fails when the time of the case is over, or the worker has exited. */
  until<T>(
    expected: string,
    worker: KitWorker,
    probe: () => T | undefined | false | Promise<T | undefined | false>,
  ): Promise<T>;
  /** Works with the second service, which other cases of the run use as well. */
  withOther<T>(work: (service: KitService) => Promise<T>): Promise<T>;
}

/** State that all cases of a run share. */
export interface KitRun {
  readonly command: KitCommand;
  readonly service: KitService;
  withOther<T>(work: (service: KitService) => Promise<T>): Promise<T>;
  readonly timeoutMs: number;
  /** Changes each wire before its worker starts. */
  readonly disturb?: (wire: KitWire) => void;
}

const pollMs = 15;

/** Runs a case in a workspace; returns what closes everything that it started. */
export function createKit(run: KitRun, workspace: string): Kit & { close(): Promise<void> } {
  const workers: KitWorker[] = [];
  const clients = new Map<string, ToolgateClient>();
  const stop = new AbortController();

  const kit: Kit & { close(): Promise<void> } = {
    timeoutMs: run.timeoutMs,
    async startWorker(prepare = () => undefined, service = run.service) {
      const worker = await startKitWorker(run.command, service.url, (wire) => {
        wire.rules.changeHello = (hello) => {
          hello.workspaces = [workspace];
        };
        prepare(wire);
        run.disturb?.(wire);
      });
      workers.push(worker);
      await kit.until("the worker to connect", worker, () => worker.wire.connections.some((each) => each.isWelcome));
      return worker;
    },
    call(tool, input, { timeoutMs = 600_000, service = run.service } = {}) {
      const sessionId = `ses_${randomBytes(12).toString("hex")}`;
      const callId = `call_${randomBytes(12).toString("hex")}`;
      const options = { sessionId, callId, workspace, timeoutMs, signal: stop.signal };
      const client = kit.client("caller", service);
      const opened = client.sessions.createSession({ sessionId, workspace });
      const ended = opened.then(() => callUntilEnd(client, tool, input, options));
      // The case may fail before it reads the outcome.
      ended.catch(() => undefined);
      const end = async () => {
        const { promise: late, reject } = Promise.withResolvers<never>();
        const seen = () => workers.map(lastOf).join("; ");
        const timer = setTimeout(
          () => reject(new Unexpected(`the call of ${tool} to end`, `it did not for ${run.timeoutMs} ms; ${seen()}`)),
          run.timeoutMs,
        );
        return await Promise.race([ended, late]).finally(() => clearTimeout(timer));
      };
      return { sessionId, callId, opened, end };
    },
    client(role, service = run.service) {
      const key = `${role} ${service.url}`;
      const client = clients.get(key) ?? connect({ url: service.url, token: tokenOf(role) });
      clients.set(key, client);
      return client;
    },
    async untilAsked({ sessionId, opened }, permission, patterns) {
      await opened;
      const [worker] = workers;
      if (!worker) throw new Error("the case has no worker");
      const approver = kit.client("approver");
      return await kit.until(`the call to ask ${permission} for "${patterns}"`, worker, async () => {
        const { permissions } = await approver.permissions.listPermissions({ sessionId });
        return permissions.find((each) => each.permission === permission && each.patterns.join() === patterns);
      });
    },
    async reply(call, permission, patterns, reply) {
      await kit.client("approver").reply(await kit.untilAsked(call, permission, patterns), reply);
    },
    async until(expected, worker, probe) {
      const deadline = performance.now() + run.timeoutMs;
      for (;;) {
        const found = await probe();
        if (found !== undefined && found !== false) return found;
        const exit = worker.exit();
        if (exit !== undefined) throw new Unexpected(expected, `the worker ended (${exit}): ${worker.printed()}`);
        if (performance.now() > deadline)
          throw new Unexpected(expected, `nothing of it for ${run.timeoutMs} ms; ${lastOf(worker)}`);
        await new Promise((resolve) => setTimeout(resolve, pollMs));
      }
    },
    withOther: run.withOther,
    async close() {
      stop.abort();
      await Promise.all(workers.map((worker) => worker.close()));
      for (const client of clients.values()) client.close();
    },
  };
  return kit;
}

/** Makes a call and waits for its end, also for one without a result. */
async function callUntilEnd(client: ToolgateClient, ...call: Parameters<ToolgateClient["call"]>): Promise<ToolPart> {
  const [, , { sessionId = "", callId = "" } = {}] = call;
  try {
    await client.call(...call);
  } catch (error) {
    if (error instanceof CallFailed) return error.part;
    throw error;
  }
  const { part } = await client.tools.getToolPart({ sessionId, callId });
  if (!part) throw new Error("the service has forgotten a call that has ended");
  return part;
}

/** Describes what came last over the wire of a worker. */
function lastOf({ wire }: KitWorker): string {
  const last = wire.seen.filter(({ message }) => message.case !== "beat").slice(-4);
  return `the last messages were ${last.map(described).join(", ") || "none"}`;
}

function described({ from, message }: Seen): string {
  return message.case === "report"
    ? `${message.value.report.case} from the ${from}`
    : `${message.case} from the ${from}`;
}

/** Fails a case unless a condition holds. */
export function check(isTrue: boolean, expected: string, seen: unknown): asserts isTrue {
  if (!isTrue)
    throw new Unexpected(expected, typeof seen === "string" ? seen : inspect(seen, { depth: 4, breakLength: 140 }));
}

/** Checks that a call has ended with this output. */
export async function checkOutput({ end }: KitCall, output: string): Promise<void> {
  const { state } = await end();
  check(state.case === "completed", `the call to complete with "${output}"`, stateOf(state));
  check(state.value.output === output, `the output "${output}"`, `"${state.value.output}"`);
}

/** Checks that a call has ended without a result. */
export async function checkReason({ end }: KitCall, reason: ToolErrorReason): Promise<void> {
  const { state } = await end();
  check(
    state.case === "error" && state.value.reason === reason,
    `the call to end ${nameOfReason(reason)}`,
    stateOf(state),
  );
}

const nameOfReason = (reason: ToolErrorReason) =>
  Object.entries(ToolErrorReason).find(([, value]) => value === reason)?.[0] ?? String(reason);

function stateOf(state: ToolPart["state"]): string {
  return state.case === "error"
    ? `it ended ${nameOfReason(state.value.reason)}: ${state.value.error}`
    : `it is ${state.case}`;
}

/** Checks which bodies were entered and stopped, in any order. */
export function checkLedger(worker: KitWorker, lines: readonly string[]): void {
  const found = worker.ledger();
  check(found.toSorted().join() === lines.toSorted().join(), `the ledger ${inspect(lines)}`, found);
}

/** Returns the connection that serves now. Those before it may have been lost before any work came. */
export function servedBy({ wire }: KitWorker): KitConnection {
  const served = wire.connections.findLast(({ isWelcome }) => isWelcome);
  if (!served) throw new Error("the worker is not welcome yet");
  return served;
}

/** Waits for the connection that follows one. */
export async function connectionAfter(kit: Kit, worker: KitWorker, before: KitConnection): Promise<KitConnection> {
  const { connections } = worker.wire;
  const next = () => connections[connections.indexOf(before) + 1];
  return await kit.until("the next connection", worker, next);
}

/** Waits for a welcome on any connection that follows one. */
export async function welcomeAfter(kit: Kit, worker: KitWorker, before: KitConnection): Promise<KitConnection> {
  const { connections } = worker.wire;
  const next = () => connections.slice(connections.indexOf(before) + 1).find(({ isWelcome }) => isWelcome);
  return await kit.until("a welcome on a later connection", worker, next);
}

/** Waits until a body has written a line. */
export async function untilLedger(kit: Kit, worker: KitWorker, line: string): Promise<void> {
  await kit.until(`a body to write "${line}" to the ledger`, worker, () => worker.ledger().includes(line));
}

/** Waits for the next message of a kind, of those that came after the first `after`. */
export async function untilSeen<F extends Seen["from"], C extends Extract<Seen, { from: F }>["message"]["case"]>(
  kit: Kit,
  worker: KitWorker,
  from: F,
  name: C,
  fits: (value: ValueOf<F, C>, seen: Seen) => boolean = () => true,
): Promise<ValueOf<F, C>> {
  return await kit.until(`${name} from the ${from}`, worker, () => {
    for (const each of worker.wire.seen) {
      const value = each.message.value as ValueOf<F, C>;
      if (each.from === from && each.message.case === name && fits(value, each)) return value;
    }
    return undefined;
  });
}

type ValueOf<F extends Seen["from"], C> = Extract<
  Extract<Seen, { from: F }>["message"],
  { case: C; value: unknown }
>["value"];

/** Waits until the process has ended, and checks that it ended in order. */
export async function checkExit(kit: Kit, worker: KitWorker): Promise<void> {
  const started = performance.now();
  while (worker.exit() === undefined) {
    check(performance.now() - started < kit.timeoutMs, "the process to exit", "it still runs");
    await new Promise((resolve) => setTimeout(resolve, pollMs));
  }
  check(worker.exit() === 0, "the process to exit with 0", `${worker.exit()}: ${worker.printed()}`);
}
