import { randomBytes } from "node:crypto";
import { basename, extname } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import {
  ToolRegistration,
  WorkerAffinity,
  type WorkerHelloSchema,
  type WorkerStart,
  type WorkerToolSchema,
  type WorkerWelcome,
  type WorkResponse,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { connectWith } from "../../client/connect.ts";
import { type ConnectOptions, findServer } from "../../client/find-server.ts";
import { backoffMs, isCut } from "../../client/resume-stream.ts";
import { boundTool, declarationOf } from "../../tool/define-tool.ts";
import type { DefinedTool, Tool } from "../../tool/tool.ts";
import { askOf } from "./bodies.ts";
import { type UsedConnection, useConnection } from "./connection.ts";
import type { SentMessage } from "./held-assignments.ts";
import { declaredTool } from "./tool-declaration.ts";
import {
  createWorker,
  dismissWorker,
  drainMessage,
  drainWorker,
  leaveIfDrained,
  logOnce,
  sendKept,
  type Worker,
} from "./worker-state.ts";

/** Time in which a body that is stopped may return a result. */
const stopGraceMs = 5_000;

/**
 * Connects, again and again, until the worker has drained. Rejects if the first connection is refused, and when another process has the
 * same instance ID: the two would end each other's connections without end.
 */
async function runWorker(worker: Worker): Promise<void> {
  const { drained } = worker;
  for (let attempt = 0; !worker.hasDrained; attempt++) {
    const connection = openConnection(worker);
    const used = await Promise.race([connection.used, drained.promise]);
    // Drained: the connection is ended from this side.
    if (!used || worker.hasDrained) {
      connection.close();
      break;
    }
    worker.send = undefined;
    if (connection.isWelcome()) attempt = 0;
    else if (worker.storeId === "" && isFinal(used.error)) throw refusalOf(worker, used.error);
    worker.previous?.close();
    if (reasonOfRefusal(used.error) === "WORKER_SUPERSEDED") {
      stopBodies(worker, "another process has taken the place of this worker, so the call is over");
      throw refusalOf(worker, used.error);
    }
    worker.previous = used;
    afterConnection(worker, used, connection.isWelcome());
    const pause = connection.isWelcome() && used.error === undefined ? 0 : backoffMs(attempt);
    const { promise: paused, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, pause);
    await Promise.race([paused, drained.promise]);
    clearTimeout(timer);
  }
  worker.previous?.close();
  clearTimeout(worker.selfStop);
}

/** Opens the next connection. Nothing is read from an earlier one any more. */
function openConnection(worker: Worker): { used: Promise<UsedConnection>; isWelcome(): boolean; close(): void } {
  let isWelcome = false;
  worker.connection += 1;
  const client = connectWith(worker.connectOptions);
  const used = useConnection(client, helloOf(worker), {
    onWelcome(welcome, send) {
      isWelcome = true;
      afterWelcome(worker, welcome, send);
    },
    onMessage: (message) => handleMessage(worker, message),
  });
  return { used, isWelcome: () => isWelcome, close: client.close };
}

function helloOf({ hello, connection, held, storeId }: Worker): MessageInitShape<typeof WorkerHelloSchema> {
  return { ...hello, connection: BigInt(connection), held: held.entered(), expectedStoreId: storeId };
}

/** Sends again what has no receipt. */
function afterWelcome(worker: Worker, welcome: WorkerWelcome, send: (message: SentMessage) => void): void {
  const { held, connectOptions } = worker;
  const { storeId, resumeMs, windowBytes, tools, notice } = welcome;
  worker.previous?.close();
  clearTimeout(worker.selfStop);
  Object.assign(worker, { storeId, resumeMs, send, previous: undefined });
  held.windowBytes = windowBytes;
  if (worker.isDraining) send(drainMessage);
  for (const message of held.messages()) send(message);
  const isRegistered = ({ registration }: (typeof tools)[number]) => registration === ToolRegistration.REGISTERED;
  const names = tools.filter(isRegistered).map(({ name }) => name);
  const refusals = tools
    .filter((tool) => !isRegistered(tool))
    .map(({ name, message }) => `; the tool ${name} is refused: ${message}`);
  logOnce(worker, `connected to ${connectOptions.url}, serves ${names.join(", ") || "no tool"}${refusals.join("")}`);
  if (notice !== "") worker.log(notice);
}

/** Prepares for the next connection, or for none: after `resumeMs` the calls of this worker are over. */
function afterConnection(worker: Worker, { error }: UsedConnection, wasWelcome: boolean): void {
  if (error !== undefined) {
    const text = error instanceof ConnectError ? error.rawMessage : String(error);
    logOnce(worker, `the connection to ${worker.connectOptions.url} is lost: ${text}; connecting again`);
  }
  if (reasonOfRefusal(error) === "STORE_CHANGED") {
    stopBodies(worker, "the service has another store, which does not know this call");
    for (const assignment of worker.held.entered()) worker.held.end(assignment);
    worker.storeId = "";
  }
  if (!wasWelcome) return;
  const words = "this worker reached no replica of the service in time, so the call is over";
  worker.selfStop = setTimeout(() => stopBodies(worker, words), worker.resumeMs);
  worker.selfStop.unref();
}

/** Stops all bodies. Their assignments stay held until the service reports their end, since they were entered. */
function stopBodies({ bodies, held }: Worker, message: string): void {
  for (const assignment of held.entered()) bodies.stop(assignment, message, stopGraceMs);
}

/** Checks for a refusal that a later attempt cannot change, such as a wrong token. */
function isFinal(error: unknown): boolean {
  return error instanceof ConnectError && !isCut(error);
}

/** The error of a connection after which no other one is opened, with the next step. */
function refusalOf({ connectOptions, hello }: Worker, cause: unknown): Error {
  const reason = reasonOfRefusal(cause) ?? "";
  const step = nextSteps[reason]?.(hello);
  const next = step === undefined ? "" : `; next: ${step}`;
  const text = cause instanceof ConnectError ? cause.rawMessage : String(cause);
  return new Error(`the service at ${connectOptions.url} refuses this worker: ${text} [${reason}]${next}`, { cause });
}

const nextSteps: Readonly<Record<string, typeof tokenStep>> = {
  UNAUTHENTICATED: tokenStep,
  ROLE_MISSING: tokenStep,
  WORKER_SUPERSEDED: () => "start each process from its program, not as a copy of a running one",
};

function reasonOfRefusal(error: unknown): string | undefined {
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0]?.reason : undefined;
}

/** Assignments that are remembered after their end, so that a late message about one is answered truthfully. */
const maxKnown = 100_000;

/** Handles a message of the service; returns false if the next connection is to be opened. */
function handleMessage(worker: Worker, message: WorkResponse["message"]): boolean {
  const { bodies, held, plans } = worker;
  switch (message.case) {
    case "plan":
      void plans.plan(message.value).then((value) => worker.send?.({ case: "planned", value }));
      return true;
    case "start":
      startBody(worker, message.value);
      return true;
    case "cancel":
      bodies.cancel(message.value);
      return true;
    case "receipt":
      held.receive(message.value);
      return true;
    case "answer":
      held.dropRequest(message.value.assignment, message.value.number);
      bodies.answer(message.value);
      return true;
    case "probe":
      answerProbe(worker, message.value);
      return true;
    case "ended":
      bodies.end(message.value.assignment);
      held.end(message.value.assignment);
      leaveIfDrained(worker);
      return true;
    case "leave":
      if (!message.value.stop) return false;
      if (worker.isDraining) dismissWorker(worker);
      else drainWorker(worker);
      return true;
    default:
      // A later version of the service may send more.
      return true;
  }
}

/** Enters a body, once: the same assignment again has no effect. */
function startBody(worker: Worker, start: WorkerStart): void {
  const { assignment } = start;
  const { held, bodies, known } = worker;
  if (known.has(assignment)) return;
  remember(worker, assignment, !worker.isDraining);
  held.open(assignment, !worker.isDraining);
  if (!worker.isDraining) return void bodies.start(start);
  const outcome = { case: "notEntered", value: "this process stops" } as const;
  const report = { case: "result", value: { outcome } } as const;
  void sendKept(worker, { case: "report", value: { assignment, report } });
}

function answerProbe(worker: Worker, assignment: string): void {
  // False is a promise: if the start of this assignment is still under way, it has no effect.
  if (!worker.known.has(assignment)) remember(worker, assignment, false);
  worker.send?.({ case: "known", value: { assignment, entered: worker.known.get(assignment) ?? false } });
}

function remember({ known, held }: Worker, assignment: string, isEntered: boolean): void {
  known.set(assignment, isEntered);
  for (const first of known.keys()) {
    if (known.size <= maxKnown) return;
    if (!held.has(first)) known.delete(first);
  }
}

/** Options of a worker. */
export interface ServeOptions extends Partial<ConnectOptions>, WorkerFacts {
  /** Abort it to drain the worker. SIGTERM and SIGINT do the same, once. */
  signal?: AbortSignal;
  /** Writes a line for operators. Default: to stderr. */
  log?: (line: string) => void;
}

/**
 * Serves tools to the service at `url` (default: TOOLGATE_URL, otherwise http://127.0.0.1:7420) with `token` (default: TOOLGATE_TOKEN),
 * which needs the role `worker`, or a client certificate that has it. Connects again whenever the connection is lost. Resolves when the worker has drained; rejects if the
 * first connection is refused, or if another process has the same instance ID.
 */
export async function serve(tools: readonly DefinedTool[], options: ServeOptions = {}): Promise<void> {
  const { signal, log = (line) => process.stderr.write(`${line}\n`) } = options;
  const hello = workerHello(tools, options);
  const connectOptions = findServer(options, "worker");
  if (connectOptions.token === undefined && connectOptions.cert === undefined)
    throw new Error(`a worker needs a token: ${tokenStep(hello)}`);
  const worker = createWorker(tools, { hello, connectOptions, log });
  // Once: the same signal again ends the process.
  const drain = () => {
    removeListeners();
    drainWorker(worker);
  };
  function removeListeners(): void {
    for (const name of ["SIGTERM", "SIGINT"] as const) process.off(name, drain);
    signal?.removeEventListener("abort", drain);
  }
  for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, drain);
  signal?.addEventListener("abort", drain, { once: true });
  if (signal?.aborted) drain();
  await runWorker(worker).finally(removeListeners);
}

/** Facts about a worker process that each of its connections declares. */
interface WorkerFacts {
  /** Names the fleet: all processes that bring the same tools. Default: the name of the program's file. */
  worker?: string;
  /** Names the code, such as a commit; it is recorded with each call. */
  buildId?: string;
  /** Orders builds: new calls get the definitions of the highest one. Default: 0. */
  generation?: number;
  /** Maximum number of bodies that run at a time. Default: 16. */
  capacity?: number;
  /** Names of the workspaces that it serves. Default: all that its token allows. */
  workspaces?: readonly string[];
  /** Time that the service waits for this process after its connection is lost, in ms. Default: 60,000. */
  resumeMs?: number;
}

/** The parts of `hello` that do not change. Throws if a tool cannot run in a worker. */
function workerHello(tools: readonly DefinedTool[], facts: WorkerFacts): MessageInitShape<typeof WorkerHelloSchema> {
  const {
    worker = fleetName(),
    buildId = "",
    generation = 0,
    capacity = 16,
    workspaces = [],
    resumeMs = 60_000,
  } = facts;
  if (tools.length === 0) throw new Error("a worker without tools has nothing to do: name at least one");
  const { bun, node } = process.versions;
  return {
    protocol: 1,
    instanceId: `wrk_${randomBytes(16).toString("base64url")}`,
    ...{ worker, buildId, capacity, resumeMs, generation: BigInt(generation), workspaces: [...workspaces] },
    sdk: `toolgate/worker on ${bun === undefined ? `Node.js ${node}` : `Bun ${bun}`}`,
    tools: tools.map(boundTool).map(workerToolOf),
  };
}

/** Command with which an operator creates a token that fits the tools. */
function tokenStep({ tools = [] }: MessageInitShape<typeof WorkerHelloSchema>): string {
  const flags = tools.map(({ name }) => `--tool ${name}`).join(" ");
  return `set TOOLGATE_TOKEN to what \`toolgate token create --role worker ${flags}\` prints`;
}

function fleetName(): string {
  const program = process.argv[1] ?? "";
  const name = basename(program, extname(program)).replaceAll(/[^A-Za-z0-9_.-]/g, "-");
  return /^[A-Za-z]/.test(name) ? name.slice(0, 64) : "worker";
}

function workerToolOf(tool: Tool): MessageInitShape<typeof WorkerToolSchema> {
  const { name } = tool;
  if (name === "") throw new Error("a tool of a worker needs a name: pass name to defineTool");
  if (tool.describe || tool.offer || tool.durable)
    throw new Error(`the tool ${name} cannot run in a worker: describe, offer and durable need the service`);
  const { hasPlan, templates, worker = {} } = declarationOf(tool);
  // What its calls may ask is for the token to say.
  const { asks: _, ...declared } = declaredTool(tool);
  const { title = "", queueMs, maxConcurrent = 0, prefersSession = false, metadataKeys = [] } = worker;
  return {
    ...declared,
    plans: hasPlan,
    permissions: templates.map((template) => askOf({ ...template, permission: template.permission ?? name })),
    ...{ title, maxConcurrent, metadataKeys: [...metadataKeys] },
    ...(queueMs !== undefined && { queueMs }),
    affinity: prefersSession ? WorkerAffinity.PREFER_SESSION : WorkerAffinity.UNSPECIFIED,
  };
}
