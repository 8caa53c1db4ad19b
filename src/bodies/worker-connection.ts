import type { Writable } from "node:stream";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { sizeDelimitedDecodeStream, sizeDelimitedEncode } from "@bufbuild/protobuf/wire";
import {
  type WorkerCallSchema,
  type WorkerHello,
  type WorkerInited,
  type WorkerLoadSchema,
  type WorkerPlanned,
  type WorkerReport,
  type WorkRequest,
  WorkRequestSchema,
  WorkResponseSchema,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import { createContractValidator, createNumberCheck } from "../core/contract-validator.ts";
import { visible } from "../core/visible.ts";
import { within } from "../core/within.ts";
import { writeTogether } from "../core/write-together.ts";
import { failAlone } from "./fail-alone.ts";

/** The two directions of a connection to a process that runs tools. */
export interface WorkerStreams {
  fromWorker: AsyncIterable<Uint8Array>;
  toWorker: Writable;
  /** Resolves with a description of the end of the process, such as `exit code 1`. */
  exited: Promise<string>;
}

/** A message of the service. */
export type WorkerMessage = NonNullable<MessageInitShape<typeof WorkResponseSchema>["message"]>;

/** Receives the reports of one body. The connection reads nothing else while a returned promise is pending. */
export type ReportListener = (report: WorkerReport["report"]) => Promise<void> | void;

/** A connection to a process that runs tools, after its hello. */
export interface WorkerConnection {
  readonly hello: WorkerHello;
  /** Aborted when the connection has ended; the reason is an `Error` that says why. */
  readonly ended: AbortSignal;
  plan(call: MessageInitShape<typeof WorkerCallSchema>): Promise<WorkerPlanned>;
  init(tool: string, agent: string): Promise<WorkerInited>;
  /** Runs a hook of a plugin, by its index; returns the output as the hook leaves it. Throws if it fails. */
  hook(plugin: number, name: string, input: JsonObject, output: JsonObject): Promise<JsonObject>;
  /** Opens an assignment, whose reports go to the listener until it is closed. */
  open(listener: ReportListener): WorkerAssignment;
  /** Ends the connection. */
  end(reason: string): void;
}

/** One run of a body. */
export interface WorkerAssignment {
  readonly id: string;
  send(message: WorkerMessage): void;
  close(): void;
}

/** The time limits that the process observes by itself, in milliseconds. */
const limitsMs = { hello: 30_000, plan: 10_000, init: 10_000, hook: 5_000 } as const;
/** Time after a limit in which a process that only was slow answers; one that is silent is taken for hung. */
export const hungAfterMs = 1_000;
/** Time in which a process that closed its connection ends, so that the reason of its end is known. */
const exitMs = 500;
const maxMessageBytes = 16 * 1024 * 1024;

/** An answer that the service waits for. */
interface Waiting {
  resolve(message: WorkRequest["message"]): void;
  fail(error: Error): void;
}

interface State {
  readonly toWorker: Writable;
  readonly waiting: Map<string, Waiting>;
  readonly listeners: Map<string, ReportListener>;
  readonly ended: AbortController;
  lastId: number;
}

/** Sends `load` and waits for the hello of the process. Throws if the connection ends first. */
export async function openWorkerConnection(
  { fromWorker, toWorker, exited }: WorkerStreams,
  load: MessageInitShape<typeof WorkerLoadSchema>,
): Promise<WorkerConnection> {
  const state: State = {
    toWorker,
    waiting: new Map(),
    listeners: new Map(),
    ended: new AbortController(),
    lastId: 0,
  };
  // Writing to a process that has ended; its end is noticed by the reader.
  toWorker.on("error", () => undefined);
  void readMessages(state, fromWorker).then(
    async () => end(state, await within(exitMs, exited, () => "it closed its connection")),
    (error: unknown) => end(state, `it sent what is no valid message: ${wordsOf(error)}`),
  );
  const helloed = answer(state, "hello", limitsMs.hello);
  send(state, { case: "load", value: load });
  const hello = await helloed;
  return {
    hello,
    ended: state.ended.signal,
    plan: (call) => ask(state, "planned", limitsMs.plan, (planId) => ({ case: "plan", value: { planId, call } })),
    init: (tool, agent) =>
      ask(state, "inited", limitsMs.init, (initId) => ({ case: "init", value: { initId, tool, agent } })),
    async hook(plugin, name, input, output) {
      const { outcome } = await ask(state, "hooked", limitsMs.hook, (hookId) => ({
        case: "hook",
        value: { hookId, plugin, name, input, output },
      }));
      if (outcome.case === "problem") throw new Error(outcome.value);
      return outcome.value ?? {};
    },
    open(listener) {
      state.lastId += 1;
      const id = String(state.lastId);
      state.listeners.set(id, listener);
      return { id, send: (message) => send(state, message), close: () => void state.listeners.delete(id) };
    },
    end: (reason) => end(state, reason),
  };
}

/** The answers of the process, by the name of their case. */
interface Answers {
  hello: WorkerHello;
  planned: WorkerPlanned;
  inited: WorkerInited;
  hooked: Extract<WorkRequest["message"], { case: "hooked" }>["value"];
}

function send({ toWorker, ended }: State, message: WorkerMessage): void {
  if (ended.signal.aborted) return;
  writeTogether(toWorker);
  toWorker.write(sizeDelimitedEncode(WorkResponseSchema, create(WorkResponseSchema, { message })));
}

/** Asks the process and waits for the answer. */
function ask<Name extends keyof Answers>(
  state: State,
  name: Name,
  ms: number,
  question: (id: string) => WorkerMessage,
): Promise<Answers[Name]> {
  state.lastId += 1;
  const id = String(state.lastId);
  const answered = answer(state, name, ms, id);
  send(state, question(id));
  return answered;
}

/** Waits for an answer. Rejects after the limit; a process that is silent for a while longer is ended. */
async function answer<Name extends keyof Answers>(
  state: State,
  name: Name,
  ms: number,
  id = "",
): Promise<Answers[Name]> {
  const key = `${name} ${id}`;
  const { ended, waiting } = state;
  const { promise, resolve, reject } = Promise.withResolvers<Answers[Name]>();
  const seconds = `${ms / 1_000} s`;
  const late = setTimeout(() => reject(new Error(`it did not answer within ${seconds}`)), ms);
  const hung = setTimeout(() => end(state, `it hung: it did not answer within ${seconds}`), ms + hungAfterMs);
  const clear = () => {
    waiting.delete(key);
    clearTimeout(late);
    clearTimeout(hung);
  };
  waiting.set(key, {
    resolve(message) {
      clear();
      if (message.case === name) resolve(message.value as Answers[Name]);
    },
    fail(error) {
      clear();
      reject(error);
    },
  });
  if (ended.signal.aborted) waiting.get(key)?.fail(ended.signal.reason);
  return await promise;
}

/** Ends the connection: everything that waits for the process fails. */
function end({ ended, waiting, listeners, toWorker }: State, reason: string): void {
  if (ended.signal.aborted) return;
  const error = new Error(reason);
  ended.abort(error);
  for (const { fail } of [...waiting.values()]) fail(error);
  listeners.clear();
  toWorker.end();
}

/** Reads messages until the process closes its end. Throws for a message that is not valid. */
async function readMessages(state: State, fromWorker: AsyncIterable<Uint8Array>): Promise<void> {
  const check = createRequestCheck();
  let hasHello = false;
  const messages = sizeDelimitedDecodeStream(WorkRequestSchema, fromWorker, { readMaxBytes: maxMessageBytes });
  for await (const request of messages) {
    if (state.ended.signal.aborted) return;
    const { message } = checked(request, check);
    if ((message.case === "hello") === hasHello) throw new Error(`${message.case} out of turn`);
    if (message.case === "hello" && message.value.protocol !== 1) throw new Error(`protocol ${message.value.protocol}`);
    hasHello = true;
    if (message.case !== "report") state.waiting.get(keyOf(message))?.resolve(message);
    // Reports of abandoned bodies have no listener any more.
    else await state.listeners.get(message.value.assignment)?.(message.value.report);
  }
}

/** Returns a message, or what to take instead if it breaks a rule. Throws if that ends the process. */
function checked(request: WorkRequest, check: (request: WorkRequest) => void): WorkRequest {
  try {
    check(request);
    return request;
  } catch (error) {
    const instead = failAlone(request, error);
    if (instead === undefined) throw error;
    return instead;
  }
}

function keyOf(message: WorkRequest["message"]): string {
  switch (message.case) {
    case "planned":
      return `planned ${message.value.planId}`;
    case "inited":
      return `inited ${message.value.initId}`;
    case "hooked":
      return `hooked ${message.value.hookId}`;
    default:
      return `${message.case} `;
  }
}

/** Creates the check of a message: the rules of the contract, and numbers that JSON can hold. */
function createRequestCheck(): (request: WorkRequest) => void {
  const validator = createContractValidator();
  const findUnwritable = createNumberCheck();
  return (request) => {
    const path = findUnwritable(WorkRequestSchema, request);
    if (path !== undefined) throw new Error(`${path} is a number that JSON cannot hold`);
    const { error } = validator.validate(WorkRequestSchema, request);
    if (error !== undefined) throw error;
  };
}

const maxWords = 500;

function wordsOf(error: unknown): string {
  return visible((error instanceof Error ? error.message : String(error)).slice(0, maxWords));
}
