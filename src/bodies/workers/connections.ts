import { toBinary } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type RegisteredTool,
  ToolRegistration,
  type WorkerHello,
  WorkerHelloSchema,
  type WorkRequest,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { type Outbox, serveBeatingStream, silenceOf } from "../../core/outbox.ts";
import type { Principal, WorkerRights } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";
import { workerIdOf } from "../../core/worker-directory.ts";
import { ExecutorLost } from "../../tool/errors.ts";
import type { WorkerMessage } from "../worker-connection.ts";
import { resumeAssignments, takeAssignmentReport, takeKnown } from "./assignments.ts";
import { leavingReplica, maxProcesses, storeChanged, superseded, tooManyProcesses, twinNotice } from "./refusals.ts";
import { setDefinitions, type WorkersState } from "./state.ts";
import { windowBytes } from "./waiting-reports.ts";
import { dismissDrained, sendTo, type WorkerProcess } from "./worker-process.ts";

/** Serves one connection of a worker, from its hello to its end. */
export async function* connectWorker(
  state: WorkersState,
  principal: Principal,
  requests: AsyncIterable<WorkRequest>,
  signal: AbortSignal,
): AsyncGenerator<WorkerMessage> {
  if (state.isDraining) throw leavingReplica();
  let entered: { process: WorkerProcess; outbox: Outbox<WorkerMessage> } | undefined;
  yield* serveWorker(
    requests,
    {
      async greet(hello, outbox) {
        const process = await enter(state, principal, hello, outbox);
        entered = { process, outbox };
        // While it was greeted the connection may have ended.
        if (outbox.hasEnded) leave(state, process, outbox);
        return (message) => take(state, process, message);
      },
      left: () => entered && leave(state, entered.process, entered.outbox),
    },
    state.beatMs,
    signal,
  );
}

/** Takes over the connection of a process, registers its tools and goes on with what it holds. */
async function enter(
  state: WorkersState,
  principal: Principal,
  hello: WorkerHello,
  outbox: Outbox<WorkerMessage>,
): Promise<WorkerProcess> {
  const rights = rightsOf(principal);
  const { expectedStoreId, instanceId } = hello;
  const isOther = () => expectedStoreId !== "" && expectedStoreId !== state.storeId();
  // The worker stops what it runs when it learns of another store, so a replica that was cut off asks the store first.
  if (isOther()) await state.verifyStoreId();
  if (isOther()) throw storeChanged(state.storeId());
  const workspaces = workspacesOf(state, principal, hello);
  const key = workerIdOf(principal.id, instanceId);
  checkNewer(state.processes.get(key), hello);
  const outcomes = await state.definitions.declare({ principal: principal.id, rights, workspaces }, hello);
  const known = state.processes.get(key);
  // Another connection of the process may have come meanwhile.
  checkNewer(known, hello);
  if (!known && [...state.processes.values()].filter((each) => each.principal === principal.id).length >= maxProcesses)
    throw tooManyProcesses(principal.id);
  const connection = Number(hello.connection);
  // A process uses a number once.
  const isTwin = known?.connection === connection;
  if (isTwin) state.log.warn(twinNotice(instanceId), { principal: principal.id });
  known?.link?.end(superseded(instanceId));
  clearTimeout(known?.timer);
  const link = { connection, send: outbox.send, end: outbox.end };
  const { capacity } = hello;
  const definitions = new Set(
    outcomes.flatMap(({ registration, definitionId }) =>
      registration === ToolRegistration.REGISTERED ? definitionId : [],
    ),
  );
  const seen = state.now();
  const facts = { rights, hello, connection, link, capacity, tools: outcomes, workspaces, seen };
  const changes = { ...facts, isDraining: false };
  const process: WorkerProcess = known
    ? Object.assign(known, changes, { timer: undefined })
    : {
        ...{ principal: principal.id, ...changes, definitions: new Set(), timer: undefined },
        ...{ taken: new Map(), bodies: new Map(), adopting: new Map(), moving: new Map(), plans: new Map() },
      };
  state.processes.set(key, process);
  setDefinitions(state, process, definitions);
  welcome(state, process, outcomes, isTwin ? twinNotice(instanceId) : "");
  state.definitions.update();
  resumeAssignments(state, process, { isTwin });
  state.calls.takeQueued();
  state.directory.changed();
  return process;
}

function welcome(
  { storeId, beatMs }: WorkersState,
  process: WorkerProcess,
  tools: RegisteredTool[],
  notice: string,
): void {
  const { resumeMs } = process.hello;
  const times = { beatMs, silenceMs: silenceOf(beatMs), resumeMs };
  sendTo(process, { case: "welcome", value: { storeId: storeId(), ...times, windowBytes, tools, notice } });
}

/** Takes a message after hello. */
function take(state: WorkersState, process: WorkerProcess, message: WorkRequest["message"]): void {
  process.seen = state.now();
  switch (message.case) {
    case "beat":
      break;
    case "capacity": {
      const { capacity, draining: isDraining } = message.value;
      Object.assign(process, { capacity, isDraining });
      state.definitions.update();
      state.calls.takeQueued();
      state.directory.changed();
      dismissDrained(process);
      break;
    }
    case "planned":
      process.plans.get(message.value.planId)?.(message.value);
      break;
    case "report":
      takeAssignmentReport(process, message.value);
      break;
    case "known":
      takeKnown(state, process, message.value.assignment, message.value.entered);
      break;
    default:
      throw invalidMessage("message", `a worker cannot send ${message.case} after hello`);
  }
}

/** Leaves a process without a connection: it may return for a while. */
function leave(state: WorkersState, process: WorkerProcess, outbox: Outbox<WorkerMessage>): void {
  if (process.link?.send !== outbox.send) return;
  process.link = undefined;
  process.plans.clear();
  process.seen = state.now();
  const { principal, definitions } = process;
  state.definitions
    .seen(principal, definitions)
    .catch((error: unknown) => state.log.warn("the last sign of a worker could not be stored", { error, principal }));
  state.definitions.update();
  state.directory.changed();
  const { worker, resumeMs } = process.hello;
  const why = `The worker ${worker} did not return within ${resumeMs} ms. What the call did is not known.`;
  process.timer = setTimeout(() => lose(state, process, why), resumeMs).unref();
}

/** Ends a connection after a later one at another replica; bodies of another process than the one that made that are lost. */
export function endSuperseded(state: WorkersState, process: WorkerProcess, connection: number): void {
  const { link, hello, principal } = process;
  if (link === undefined || connection < process.connection) return;
  const isTwin = connection === process.connection;
  if (isTwin) state.log.warn(twinNotice(hello.instanceId), { principal });
  link.end(superseded(hello.instanceId));
  if (!isTwin) return;
  lose(state, process, `Another process took the place of the worker ${hello.worker}. What the call did is not known.`);
  state.definitions.update();
}

function lose(state: WorkersState, process: WorkerProcess, why: string): void {
  const { hello, principal, bodies } = process;
  process.link = undefined;
  clearTimeout(process.timer);
  state.processes.delete(workerIdOf(principal, hello.instanceId));
  state.directory.forget(process);
  setDefinitions(state, process, new Set());
  for (const body of bodies.values()) if (!body.hasResult) body.reject(new ExecutorLost(why));
}

function rightsOf({ id, roles, worker }: Principal): WorkerRights {
  if (worker !== undefined && roles.size === 1) return worker;
  throw new RequestError(
    ErrorReason.ROLE_MISSING,
    `the token "${id}" has no limits of a worker, or another role, too; create one with \`toolgate token create --role worker --tool NAME\``,
    { roles: "worker" },
  );
}

function workspacesOf(
  { workspaces: all }: WorkersState,
  { id, workspaces: own }: Principal,
  { workspaces: wanted }: WorkerHello,
) {
  const allowed = own.includes("*") ? all : own;
  const wrong = wanted.find((name) => !allowed.includes(name) || !all.includes(name));
  if (wrong !== undefined)
    throw new RequestError(
      ErrorReason.UNKNOWN_WORKSPACE,
      `workspace "${wrong}" is not one in which the token "${id}" may act; these are: ${allowed.join(", ")}`,
      { workspace: wrong },
    );
  return new Set(wanted.length === 0 ? allowed : wanted);
}

function checkNewer(known: WorkerProcess | undefined, { connection, instanceId }: WorkerHello): void {
  if (known !== undefined && known.connection > Number(connection)) throw superseded(instanceId);
}

/** The end of a connection that a worker reads and writes. */
interface WorkerPeer {
  /** Receives the first message. Returns the function that receives all others. */
  greet(hello: WorkerHello, outbox: Outbox<WorkerMessage>): Promise<(message: WorkRequest["message"]) => void>;
  /** Called once, when the connection has ended. */
  left(): void;
}

/** Protocol that this service speaks. */
const protocol = 1;
const maxHelloBytes = 512 * 1024;
/** Messages that may wait for a worker until its own are no longer read. */
const maxWaiting = 4_096;

/** Serves one connection: yields the messages to the worker until it leaves, is silent, is superseded, or the signal is aborted. */
export function serveWorker(
  requests: AsyncIterable<WorkRequest>,
  peer: WorkerPeer,
  beatMs: number,
  signal: AbortSignal,
): AsyncGenerator<WorkerMessage> {
  return serveBeatingStream<WorkRequest, WorkerMessage>({
    ...{ requests, signal, beatMs, maxWaiting, silent, beat: { case: "beat", value: {} } },
    async greet({ message }, outbox) {
      const take = await peer.greet(checkedHello(message), outbox);
      return (request) => take(request.message);
    },
    ended: () => peer.left(),
  });
}

function checkedHello(message: WorkRequest["message"]): WorkerHello {
  if (message.case !== "hello")
    throw invalidMessage("message", `the first message of a worker must be hello, not ${message.case}`);
  const hello = message.value;
  if (hello.protocol !== protocol)
    throw new RequestError(
      ErrorReason.WORKER_PROTOCOL,
      `the worker speaks protocol ${hello.protocol}, this service ${protocol}; use a library of this version`,
      { protocol: String(protocol) },
    );
  const { length } = toBinary(WorkerHelloSchema, hello);
  if (length > maxHelloBytes)
    throw new RequestError(
      ErrorReason.REQUEST_TOO_LARGE,
      `hello has ${length} bytes, over the limit of ${maxHelloBytes}; declare fewer or shorter tools`,
      { limit: String(maxHelloBytes) },
    );
  checkRequired(hello);
  return hello;
}

/** Checks what is required of workers, but not of tool processes. */
function checkRequired({ instanceId, connection, worker, tools, capacity, plugins, files }: WorkerHello): void {
  const wrong = [
    [instanceId === "", "hello.instance_id", "make a random one when the process starts"],
    [connection === 0n, "hello.connection", "count the connections of the process, from 1"],
    [worker === "", "hello.worker", "name the fleet"],
    [tools.length === 0 || tools.length > 200, "hello.tools", "declare 1 to 200 tools"],
    [capacity === 0, "hello.capacity", "take at least one body at a time"],
    [plugins.length + files.length > 0, "hello.plugins", "leave out what only tool processes have"],
  ] as const;
  for (const [isWrong, field, next] of wrong)
    if (isWrong) throw invalidMessage(field, `${field} does not fit: ${next}`);
}

/** Refuses a message that a worker may not send. */
function invalidMessage(field: string, message: string): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, message, { field });
}

const silent = (ms: number) =>
  new RequestError(
    ErrorReason.WORKER_SILENT,
    `the worker sent no message for ${ms} ms; connect again, and send beat while there is nothing else to send`,
    { ms: String(ms) },
  );
