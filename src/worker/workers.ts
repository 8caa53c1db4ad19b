import { randomBytes } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type RegisteredTool,
  ToolRegistration,
  WorkerAffinity,
  type WorkerCallSchema,
  type WorkerHello,
  type WorkerPlanned,
  type WorkerReport,
  type WorkerTool,
  type WorkRequest,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import type { WorkerDeclaration } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Logger } from "../core/logger.ts";
import type { Outbox } from "../core/outbox.ts";
import type { Principal, WorkerRights } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import { ExecutorLost, NotEntered } from "../tool/errors.ts";
import type { Registry } from "../tool/registry.ts";
import { assignmentOf, callOfAssignment, type RemoteCall, type RemoteMark, type Reservation } from "../tool/remote.ts";
import type { Tool } from "../tool/tool.ts";
import type { WorkerMessage } from "../tool/worker/worker-connection.ts";
import type { IsClosed } from "./declared-tool.ts";
import { createDefinitions } from "./definitions.ts";
import { invalidMessage, serveWorker, silenceOf } from "./link.ts";
import { endBody, resumeBody, takeReport, windowBytes } from "./remote-body.ts";
import type { RemoteHost } from "./remote-tool.ts";
import { capacityFor, processKeyOf, sendTo, type WorkerProcess } from "./worker-process.ts";

/** Steps of the engine that workers cause. */
export interface WorkerCalls {
  /** Continues a started call here, whose body a worker holds. */
  adopt(call: RemoteCall, mark: RemoteMark): Promise<"adopted" | "ended" | "foreign">;
  /** Starts a call again whose body was never entered. */
  restartUnentered(call: RemoteCall, mark: RemoteMark): Promise<boolean>;
  /** Claims calls that wait for capacity. */
  takeQueued(): void;
}

/** Parts of a replica that workers need. */
export interface WorkersParts {
  registry: Pick<Registry, "get" | "register" | "refresh">;
  declarations: RecordTable<WorkerDeclaration>;
  calls: WorkerCalls;
  rightsOf(principal: string): WorkerRights | undefined;
  isClosed: IsClosed;
  /** Names of all workspaces. */
  workspaces: readonly string[];
  storeId(): string;
  beatMs: number;
  now(): number;
  log: Logger;
}

/** The workers of one replica. */
export interface Workers {
  /** Serves one connection of a worker. */
  connect(
    principal: Principal,
    requests: AsyncIterable<WorkRequest>,
    signal: AbortSignal,
  ): AsyncGenerator<WorkerMessage>;
  /** Returns the tool of a definition, also while another one serves under its name. */
  tool(definitionId: string, workspace: string): Tool | undefined;
  /** Asks a worker, if it is connected here, about a started call whose replica was lost. */
  orphan(call: RemoteCall, mark: RemoteMark): void;
  /** Called when this replica has recorded the end of a call. */
  ended(call: RemoteCall): void;
  /** Registers the tools of stored declarations as they are now. */
  refresh(): Promise<void>;
  /** Processes that are connected to this replica, or that may return. */
  list(): readonly WorkerProcess[];
  /** Accepts no more connections, and lets workers connect elsewhere. */
  drain(withinMs: number): void;
  /** Forgets all workers; their calls stay as they are. */
  close(): void;
}

const maxProcesses = 50;
const maxSessions = 10_000;
const planMs = 10_000;
const maxPlans = 8;

/** State of the workers of one replica. */
interface State extends WorkersParts {
  readonly processes: Map<string, WorkerProcess>;
  /** Process of the last call of a session, for tools that prefer it. */
  readonly lastOf: Map<string, string>;
  readonly definitions: ReturnType<typeof createDefinitions>;
  isDraining: boolean;
}

/** Creates the workers of a replica, with the tools that are stored. */
export function createWorkers(parts: WorkersParts): Workers {
  const state: State = {
    ...parts,
    ...{ processes: new Map(), lastOf: new Map(), isDraining: false },
    definitions: createDefinitions({
      ...parts,
      hostOf: (definitionId, declared, worker, workspace) =>
        hostOf(state, { definitionId, declared, worker, workspace }),
      isServed: (definitionId, workspace) =>
        [...state.processes.values()].some(
          ({ link, isDraining, definitions, workspaces }) =>
            link !== undefined && !isDraining && definitions.has(definitionId) && workspaces.has(workspace),
        ),
    }),
  };
  state.definitions.update();
  return {
    connect: (principal, requests, signal) => connect(state, principal, requests, signal),
    tool: state.definitions.tool,
    orphan: (call, mark) => probe(state, call, mark),
    ended: ({ sessionId, callId }) => {
      for (const { bodies } of state.processes.values())
        for (const body of bodies.values())
          if (body.ctx.sessionId === sessionId && body.ctx.callId === callId) endBody(body);
    },
    async refresh() {
      await parts.declarations.refresh();
      state.definitions.update();
    },
    list: () => [...state.processes.values()],
    drain(withinMs) {
      state.isDraining = true;
      for (const process of state.processes.values())
        sendTo(process, { case: "leave", value: { stop: false, withinMs } });
    },
    close() {
      state.isDraining = true;
      for (const { link, timer } of state.processes.values()) {
        clearTimeout(timer);
        link?.end(draining());
      }
      state.processes.clear();
    },
  };
}

async function* connect(
  state: State,
  principal: Principal,
  requests: AsyncIterable<WorkRequest>,
  signal: AbortSignal,
): AsyncGenerator<WorkerMessage> {
  if (state.isDraining) throw draining();
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
  state: State,
  principal: Principal,
  hello: WorkerHello,
  outbox: Outbox<WorkerMessage>,
): Promise<WorkerProcess> {
  const rights = rightsOf(principal);
  const { expectedStoreId, instanceId } = hello;
  if (expectedStoreId !== "" && expectedStoreId !== state.storeId()) throw storeChanged(state.storeId());
  const workspaces = workspacesOf(state, principal, hello);
  const key = processKeyOf(principal.id, instanceId);
  checkNewer(state.processes.get(key), hello);
  const outcomes = await state.definitions.declare({ principal: principal.id, rights, workspaces }, hello);
  const known = state.processes.get(key);
  // Another connection of the process may have come meanwhile.
  checkNewer(known, hello);
  if (!known && [...state.processes.values()].filter((each) => each.principal === principal.id).length >= maxProcesses)
    throw tooManyProcesses(principal.id);
  known?.link?.end(superseded(instanceId));
  clearTimeout(known?.timer);
  const connection = Number(hello.connection);
  const link = { connection, send: outbox.send, end: outbox.end };
  const { capacity } = hello;
  const definitions = new Set(
    outcomes.flatMap(({ registration, definitionId }) =>
      registration === ToolRegistration.REGISTERED ? definitionId : [],
    ),
  );
  const seen = state.now();
  const facts = { rights, hello, connection, link, capacity, tools: outcomes, definitions, workspaces, seen };
  const changes = { ...facts, isDraining: false };
  const process: WorkerProcess = known
    ? Object.assign(known, changes, { timer: undefined })
    : {
        ...{ principal: principal.id, ...changes, timer: undefined },
        ...{ taken: new Map(), bodies: new Map(), adopting: new Map(), plans: new Map() },
      };
  state.processes.set(key, process);
  welcome(state, process, outcomes);
  state.definitions.update();
  resume(state, process);
  state.calls.takeQueued();
  return process;
}

function welcome({ storeId, beatMs }: State, process: WorkerProcess, tools: RegisteredTool[]): void {
  const { resumeMs } = process.hello;
  const times = { beatMs, silenceMs: silenceOf(beatMs), resumeMs };
  sendTo(process, { case: "welcome", value: { storeId: storeId(), ...times, windowBytes, tools } });
}

/** Goes on with the bodies that a process holds; those that it does not hold were never entered. */
function resume(state: State, process: WorkerProcess): void {
  const held = new Set(process.hello.held);
  for (const [assignment, body] of process.bodies) {
    if (held.has(assignment)) {
      moveCall(state, process, assignment);
      resumeBody(body);
    } else if (!body.hasResult) body.reject(new NotEntered("its worker has connected again without it"));
  }
  for (const assignment of held) {
    if (process.bodies.has(assignment)) continue;
    adopt(state, process, assignment).catch((error: unknown) => {
      state.log.warn("a call of a worker cannot be continued here", { error });
      process.link?.end(draining());
    });
  }
}

/** Stores the connection by which a body that runs here goes on: reports of the one before are older. */
function moveCall({ calls, log }: State, process: WorkerProcess, assignment: string): void {
  const call = callOfAssignment(assignment);
  if (call === undefined) return;
  calls
    .adopt(call, markOf(process, assignment))
    .catch((error: unknown) => log.warn("the new connection of a worker could not be stored", { error, ...call }));
}

async function adopt({ calls }: State, process: WorkerProcess, assignment: string): Promise<void> {
  const call = callOfAssignment(assignment);
  if (!process.adopting.has(assignment)) process.adopting.set(assignment, []);
  const outcome = call && (await calls.adopt(call, markOf(process, assignment)));
  if (outcome === "adopted") return;
  process.adopting.delete(assignment);
  sendTo(process, { case: "ended", value: { assignment, recorded: false } });
}

function markOf(
  { principal, connection, hello: { instanceId, resumeMs } }: WorkerProcess,
  assignment: string,
): RemoteMark {
  return { principal, instance: instanceId, connection, assignment, resumeMs };
}

/** Takes a message after hello. */
function take(state: State, process: WorkerProcess, message: WorkRequest["message"]): void {
  process.seen = state.now();
  switch (message.case) {
    case "beat":
      break;
    case "capacity": {
      const { capacity, draining: isDraining } = message.value;
      Object.assign(process, { capacity, isDraining });
      state.definitions.update();
      state.calls.takeQueued();
      break;
    }
    case "planned":
      process.plans.get(message.value.planId)?.(message.value);
      break;
    case "report": {
      const { assignment } = message.value;
      const body = process.bodies.get(assignment);
      if (body) takeReport(body, message.value);
      else takeUnknown(process, message.value);
      break;
    }
    case "known":
      known(state, process, message.value.assignment, message.value.entered);
      break;
    default:
      throw invalidMessage("message", `a worker cannot send ${message.case} after hello`);
  }
}

/** Takes a report of a body that is not run here: one that is being adopted gets it as soon as it runs. */
function takeUnknown(process: WorkerProcess, report: WorkerReport): void {
  const { assignment } = report;
  const waiting = process.adopting.get(assignment);
  if (waiting === undefined) sendTo(process, { case: "ended", value: { assignment, recorded: false } });
  else waiting.push(report);
}

/** Asks a process about a call whose replica was lost after its start mark. */
function probe({ processes }: State, _call: RemoteCall, mark: RemoteMark): void {
  const process = processes.get(processKeyOf(mark.principal, mark.instance));
  if (process?.link === undefined || process.connection < mark.connection || process.bodies.has(mark.assignment))
    return;
  sendTo(process, { case: "probe", value: mark.assignment });
}

function known(state: State, process: WorkerProcess, assignment: string, isEntered: boolean): void {
  const call = callOfAssignment(assignment);
  if (call === undefined || process.bodies.has(assignment)) return;
  const step = isEntered
    ? adopt(state, process, assignment)
    : state.calls.restartUnentered(call, markOf(process, assignment)).then(() => undefined);
  step.catch((error: unknown) => state.log.warn("a call of a worker cannot be continued here", { error }));
}

/** Leaves a process without a connection: it may return for a while. */
function leave(state: State, process: WorkerProcess, outbox: Outbox<WorkerMessage>): void {
  if (process.link?.send !== outbox.send) return;
  process.link = undefined;
  process.plans.clear();
  process.seen = state.now();
  const { principal, definitions } = process;
  state.definitions
    .seen(principal, definitions)
    .catch((error: unknown) => state.log.warn("the last sign of a worker could not be stored", { error, principal }));
  state.definitions.update();
  process.timer = setTimeout(() => lose(state, process), process.hello.resumeMs).unref();
}

function lose(state: State, process: WorkerProcess): void {
  const { hello, principal, bodies } = process;
  state.processes.delete(processKeyOf(principal, hello.instanceId));
  const why = `The worker ${hello.worker} did not return within ${hello.resumeMs} ms. What the call did is not known.`;
  for (const body of bodies.values()) if (!body.hasResult) body.reject(new ExecutorLost(why));
}

/** Makes the part of a tool that finds its workers in a workspace. */
function hostOf(
  state: State,
  {
    definitionId,
    declared,
    worker,
    workspace,
  }: { definitionId: () => string; declared: WorkerTool; worker: string; workspace: string },
): RemoteHost {
  const able = () =>
    [...state.processes.values()].filter(
      (process) => process.workspaces.has(workspace) && capacityFor(process, definitionId(), declared.name) > 0,
    );
  return {
    queueMs: declared.queueMs ?? 60_000,
    isClosed: state.isClosed,
    reserve(call) {
      const process = pick(state, able(), definitionId(), declared, call);
      return process && reserve(state, process, definitionId(), call);
    },
    unavailable() {
      const seen = state.definitions.lastSeen(definitionId());
      const connected = [...state.processes.values()].some(
        ({ link, definitions }) => link && definitions.has(definitionId()),
      );
      const when = connected ? "is busy" : `is not connected; it was last seen at ${new Date(seen).toISOString()}`;
      return `No worker took the call in time, so it was not run: the fleet "${worker}" ${when}. Try again later, or start a worker.`;
    },
    processOf: ({ mark }) => state.processes.get(processKeyOf(mark.principal, mark.instance)),
    async plan(call) {
      const process = [...state.processes.values()].find(
        ({ link, definitions, workspaces, plans }) =>
          link && definitions.has(definitionId()) && workspaces.has(workspace) && plans.size < maxPlans,
      );
      return process && (await planBy(process, call));
    },
  };
}

function pick(
  { lastOf }: State,
  able: readonly WorkerProcess[],
  definitionId: string,
  { affinity, name }: WorkerTool,
  { sessionId }: RemoteCall,
): WorkerProcess | undefined {
  const last = affinity === WorkerAffinity.PREFER_SESSION ? lastOf.get(sessionId) : undefined;
  const preferred = able.find(({ principal, hello }) => processKeyOf(principal, hello.instanceId) === last);
  if (preferred) return preferred;
  return able.toSorted(
    (a, b) =>
      Number(b.hello.generation - a.hello.generation) ||
      capacityFor(b, definitionId, name) - capacityFor(a, definitionId, name),
  )[0];
}

function reserve(state: State, process: WorkerProcess, definitionId: string, call: RemoteCall): Reservation {
  const assignment = assignmentOf(randomBytes(16).toString("base64url"), call);
  const { taken, hello } = process;
  taken.set(assignment, definitionId);
  state.lastOf.delete(call.sessionId);
  state.lastOf.set(call.sessionId, processKeyOf(process.principal, hello.instanceId));
  const [oldest] = state.lastOf.keys();
  if (state.lastOf.size > maxSessions && oldest !== undefined) state.lastOf.delete(oldest);
  return {
    mark: markOf(process, assignment),
    worker: hello.worker,
    buildId: hello.buildId,
    free() {
      if (taken.delete(assignment)) state.calls.takeQueued();
    },
  };
}

/** Lets a worker plan a call; undefined if it does not answer in time. */
async function planBy(
  process: WorkerProcess,
  call: MessageInitShape<typeof WorkerCallSchema>,
): Promise<WorkerPlanned | undefined> {
  const { promise, resolve } = Promise.withResolvers<WorkerPlanned | undefined>();
  const planId = randomBytes(16).toString("base64url");
  process.plans.set(planId, resolve);
  const timer = setTimeout(() => resolve(undefined), planMs);
  sendTo(process, { case: "plan", value: { planId, call } });
  return await promise.finally(() => {
    clearTimeout(timer);
    process.plans.delete(planId);
  });
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
  { workspaces: all }: State,
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
  if (known !== undefined && known.connection >= Number(connection)) throw superseded(instanceId);
}

const superseded = (instanceId: string) =>
  new RequestError(
    ErrorReason.WORKER_SUPERSEDED,
    `the worker process ${instanceId} opened a later connection, and this one ends; give each process its own instance_id`,
    { instance_id: instanceId },
  );

const draining = () =>
  new RequestError(
    ErrorReason.DRAINING,
    "this replica is going away; connect to another one, or again in a moment, with the same instance_id",
  );

const storeChanged = (storeId: string) =>
  new RequestError(
    ErrorReason.STORE_CHANGED,
    "the store is another one than that of the held assignments: stop their bodies, and connect without them",
    { store_id: storeId },
  );

const tooManyProcesses = (principal: string) =>
  new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `the token "${principal}" has ${maxProcesses} worker processes at this replica, the limit; stop one, or use another token`,
    { limit: "worker_processes" },
  );
