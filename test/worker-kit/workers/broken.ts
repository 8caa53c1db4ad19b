/**
 * A worker of the core tools without an SDK, which makes the mistake that its argument names. The kit has to find each.
 */
import { randomBytes } from "node:crypto";
import { appendFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  WorkerFailure,
  type WorkerReportSchema,
  type WorkerStart,
  type WorkerToolSchema,
  type WorkRequest,
  WorkRequestSchema,
  type WorkResponse,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { connect } from "../../../src/client/client.ts";
import { createOutbox, type Outbox } from "../../../src/core/outbox.ts";
import type { Mistake } from "./mistakes.ts";

/** An assignment that is not over. */
interface Held {
  readonly reports: MessageInitShape<typeof WorkerReportSchema>[];
  /** Bytes of the output that are stored. */
  stored: number;
  isStopped: boolean;
  hasResult: boolean;
  isAnswered: boolean;
}

const makes = (mistake: Mistake) => process.argv[2] === mistake;
const folder = process.env.TOOLGATE_KIT ?? "";
const note = (line: string) => appendFileSync(join(folder, "ledger"), `${line}\n`);
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

const instanceId = `wrk_${randomBytes(16).toString("base64url")}`;
const held = new Map<string, Held>();
const entered = new Map<string, boolean>();
let [connection, storeId, windowBytes, resumeMs, isDraining, isDismissed] = [0, "", 0, 30_000, false, false];
let current: Outbox<WorkRequest> | undefined;
let selfStop: NodeJS.Timeout | undefined;

const text = { type: "string" };
const number = { type: "integer" };
const tool = (name: string, properties: Record<string, { type: string }> = { text }) => ({
  ...{
    name,
    description: `${name}.`,
    permissions: name === "kit_echo" ? [{ permission: name, patterns: ["{text}"] }] : [],
  },
  inputSchema: { type: "object", properties, required: Object.keys(properties) },
});
const tools: MessageInitShape<typeof WorkerToolSchema>[] = [
  tool("kit_echo"),
  tool("kit_write", { text, bytes: number, file_bytes: number }),
  tool("kit_wait"),
  tool("kit_poll"),
  tool("kit_ask", { text, tool: text }),
];

function send(message: NonNullable<MessageInitShape<typeof WorkRequestSchema>["message"]>, to = current): void {
  to?.send(create(WorkRequestSchema, { message }));
}

/** Sends a report, and keeps it for the next connection. */
function report(assignment: string, value: MessageInitShape<typeof WorkerReportSchema>["report"]): void {
  const each = { assignment, ...(value && { report: value }) };
  const kept = held.get(assignment);
  if (!kept || kept.hasResult) return;
  if (value?.case !== "request" || !makes("sends an open request once")) kept.reports.push(each);
  send({ case: "report", value: each });
  if (value?.case !== "result") return;
  kept.hasResult = true;
  // The result is on the line before the process ends.
  if (makes("leaves without `ended`")) setTimeout(leaveIfDrained, 100);
  if (makes("drops results before their receipt")) held.delete(assignment);
}

async function run({ assignment, call }: WorkerStart, state: Held): Promise<void> {
  const { text: name = "", bytes = 0 } = (call?.input ?? {}) as { text?: string; bytes?: number };
  note(`entered ${name}`);
  if (call?.tool === "kit_write") {
    for (let at = 0; at < bytes; at += 16_384) {
      while (at - state.stored > windowBytes) await pause(5);
      const data = Uint8Array.from({ length: Math.min(16_384, bytes - at) }, (_, index) => 97 + ((at + index) % 26));
      report(assignment, { case: "output", value: { blob: 0, offset: BigInt(at), data } });
    }
    return report(assignment, { case: "result", value: { outcome: { case: "completed", value: {} } } });
  }
  if (call?.tool === "kit_ask") {
    const ask = { permission: "kit_traffic", patterns: [name] };
    report(assignment, { case: "request", value: { number: 1, request: { case: "ask", value: ask } } });
  }
  const isReleased = () => (call?.tool === "kit_ask" ? state.isAnswered : existsSync(join(folder, `release-${name}`)));
  while (call?.tool !== "kit_echo" && !isReleased()) {
    if (state.isStopped) {
      note(`stopped ${name}`);
      const failed = { kind: WorkerFailure.STOPPED, message: "stopped" };
      return report(assignment, { case: "result", value: { outcome: { case: "failed", value: failed } } });
    }
    await pause(20);
  }
  report(assignment, { case: "result", value: { outcome: { case: "completed", value: { output: name } } } });
}

function start(value: WorkerStart): void {
  const { assignment } = value;
  if (entered.has(assignment) && !makes("enters an assignment twice")) return;
  entered.set(assignment, !isDraining);
  if (isDraining) {
    const result = { outcome: { case: "notEntered" as const, value: "this process stops" } };
    send({ case: "report", value: { assignment, report: { case: "result", value: result } } });
    return;
  }
  const state: Held = { reports: [], stored: 0, isStopped: false, hasResult: false, isAnswered: false };
  held.set(assignment, state);
  void run(value, state);
}

function stopAll(): void {
  for (const each of held.values()) each.isStopped = true;
}

function drain(): void {
  isDraining = true;
  send({ case: "capacity", value: { capacity: 0, draining: true } });
  leaveIfDrained();
}

function leaveIfDrained(): void {
  const mayLeave = isDismissed || makes("leaves before it may");
  const isOver = makes("leaves without `ended`") ? held.values().every(({ hasResult }) => hasResult) : held.size === 0;
  if (isDraining && mayLeave && isOver) process.exit(0);
}

/** Handles a message; false if the next connection is to be opened. */
function handle(message: WorkResponse["message"]): boolean {
  switch (message.case) {
    case "start":
      start(message.value);
      break;
    case "cancel": {
      const body = held.get(message.value.assignment);
      if (body && !makes("ignores cancel")) body.isStopped = true;
      break;
    }
    case "receipt": {
      const body = held.get(message.value.assignment);
      if (!body) break;
      const stored = Number(message.value.stored[0] ?? 0n);
      body.stored = stored;
      const isOpen = ({ report: each }: Held["reports"][number]) =>
        each?.case !== "output" || Number(each.value.offset) + (each.value.data?.length ?? 0) > stored;
      body.reports.splice(0, body.reports.length, ...body.reports.filter(isOpen));
      break;
    }
    case "probe": {
      if (!entered.has(message.value)) entered.set(message.value, false);
      const isEntered = (entered.get(message.value) ?? false) && !makes("denies a body that it entered");
      send({ case: "known", value: { assignment: message.value, entered: isEntered } });
      break;
    }
    case "answer": {
      const body = held.get(message.value.assignment);
      if (!body) break;
      body.isAnswered = true;
      body.reports.splice(
        0,
        body.reports.length,
        ...body.reports.filter(({ report: each }) => each?.case !== "request"),
      );
      break;
    }
    case "ended": {
      const body = held.get(message.value.assignment);
      if (body && !makes("goes on after `ended`")) body.isStopped = true;
      held.delete(message.value.assignment);
      leaveIfDrained();
      break;
    }
    case "leave":
      if (!message.value.stop) return false;
      isDismissed = isDraining;
      if (isDraining) leaveIfDrained();
      else drain();
  }
  return true;
}

/** Serves one connection; returns what closes it, once the next one is welcome. */
async function serve(closePrevious: () => void): Promise<() => void> {
  const client = connect({ url: process.env.TOOLGATE_URL ?? "", token: process.env.TOOLGATE_TOKEN ?? "" });
  const outbox = createOutbox<WorkRequest>();
  let [beats, silence]: (NodeJS.Timeout | undefined)[] = [];
  const close = () => {
    clearInterval(beats);
    clearTimeout(silence);
    outbox.end();
    client.close();
  };
  connection += 1;
  const facts = {
    protocol: 1,
    instanceId,
    connection: BigInt(connection),
    worker: "broken",
    capacity: 16,
    resumeMs: 60_000,
  };
  send({ case: "hello", value: { ...facts, tools, held: [...held.keys()], expectedStoreId: storeId } }, outbox);
  let silenceMs = 15_000;
  const stream = client.workers.work(outbox.messages(), { timeoutMs: 0 })[Symbol.asyncIterator]();
  const readRest = async () => {
    for (let next = await stream.next(); !next.done; next = await stream.next()) handle(next.value.message);
  };
  try {
    for (let next = await stream.next(); !next.done; next = await stream.next()) {
      clearTimeout(silence);
      silence = setTimeout(close, silenceMs);
      const { message } = next.value;
      if (message.case === "welcome") {
        closePrevious();
        clearTimeout(selfStop);
        current = outbox;
        ({ storeId, windowBytes, resumeMs, silenceMs } = message.value);
        if (!makes("never beats"))
          beats = setInterval(() => send({ case: "beat", value: {} }, outbox), message.value.beatMs / 2);
        if (isDraining) send({ case: "capacity", value: { capacity: 0, draining: true } });
        if (!makes("sends nothing again after a cut"))
          for (const { reports } of held.values()) for (const value of reports) send({ case: "report", value });
      } else if (!handle(message)) {
        if (makes("reads the old connection")) readRest().catch(() => undefined);
        return close;
      }
    }
    close();
    return () => undefined;
  } catch (error) {
    close();
    if (String(error).includes("the store is another one")) {
      stopAll();
      held.clear();
      storeId = "";
    }
    return () => undefined;
  } finally {
    if (current === outbox) {
      current = undefined;
      selfStop = setTimeout(stopAll, resumeMs);
    }
  }
}

process.on("SIGTERM", drain);
let close = () => {};
for (;;) {
  close = await serve(close);
  await pause(50);
}
