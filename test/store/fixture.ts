import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import type { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import {
  type Grant,
  GrantMatchSchema,
  GrantSchema,
  GrantScope,
  PermissionOutcome,
  PermissionOutcomeSchema,
  type PermissionSettled,
  PermissionSettledSchema,
  PersonSchema,
  type Vote,
  VoteSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  type PermissionRequest,
  PermissionRequestSchema,
  PermissionToolContextSchema,
  ToolEffects,
  ToolErrorReason,
  type ToolPart,
  ToolPartSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Escalation, PermissionStore, Settlement } from "../../src/approval/ports.ts";
import type { CallRecord, CallSpec, CallStore, Delegation, Fence, OutputStore } from "../../src/call/ports.ts";
import type { CallRef } from "../../src/core/call-ref.ts";
import { RequestError } from "../../src/core/request-error.ts";
import type { WorkerDirectory } from "../../src/core/worker-directory.ts";
import type { ExportStore, NewNotice, NoticeStore } from "../../src/reach/ports.ts";
import type { RemoteMark } from "../../src/tool/remote.ts";

/** A store under test. Only `advance` moves its clock. */
export interface OpenedStore {
  calls: CallStore;
  permissions: PermissionStore;
  outputs: OutputStore;
  workerDirectory: WorkerDirectory;
  notices: NoticeStore;
  exports: ExportStore;
  advance(ms: number): void;
  /** Closes the store and opens it again with the same contents. */
  reopen(): Promise<OpenedStore>;
  close(): Promise<void>;
}

/** Opens an empty store. */
export type OpenStore = (options?: StoreOptions) => Promise<OpenedStore>;

/** Limits of logs, and receivers of the audit. */
export interface StoreOptions {
  limits?: { events: number; bytes: number };
  receivers?: readonly string[];
}

/** The replica that runs the calls of a test. */
export const owner = "replica_1";
export const leaseMs = 15_000;
export const askMs = 900_000;
export const day = 86_400_000;

/** Builds the reference of a call, by default in a root session. */
export function callRef(callId = "call_1", sessionId = "ses_root", root = "ses_root"): CallRef {
  return { root, sessionId, callId };
}

export async function addSession(
  { calls }: Pick<OpenedStore, "calls">,
  id = "ses_root",
  fields: MessageInitShape<typeof SessionSchema> = {},
): Promise<void> {
  const session = { id, workspace: "default", agent: "build", owner: "alice", created: calls.now(), ...fields };
  await calls.createSession(create(SessionSchema, { rootSessionId: id, ...session }));
}

/** Adds a root session, its child and its grandchild. */
export async function addTree(store: OpenedStore): Promise<void> {
  await addSession(store, "ses_root");
  await addSession(store, "ses_child", { parentSessionId: "ses_root", rootSessionId: "ses_root" });
  await addSession(store, "ses_grandchild", { parentSessionId: "ses_child", rootSessionId: "ses_root" });
}

const names = ({ sessionId, callId }: CallRef) => ({
  id: `prt_${callId}`,
  sessionId,
  messageId: "msg_1",
  type: "tool",
  callId,
  tool: "bash",
  agent: "build",
});

export const someInput: JsonObject = { command: "make" };

export function pending(ref: CallRef, input = someInput): ToolPart {
  return create(ToolPartSchema, { ...names(ref), state: { case: "pending", value: { status: "pending", input } } });
}

export function running(ref: CallRef, input = someInput): ToolPart {
  const value = { status: "running", input, title: "make", time: { start: 1 } };
  return create(ToolPartSchema, { ...names(ref), state: { case: "running", value } });
}

export function completed(ref: CallRef, output = "done", input = someInput): ToolPart {
  const value = { status: "completed", input, output, title: "make", time: { start: 1, end: 2 } };
  return create(ToolPartSchema, { ...names(ref), state: { case: "completed", value } });
}

export function failed(ref: CallRef, reason: ToolErrorReason = ToolErrorReason.REJECTED): ToolPart {
  const value = {
    status: "error",
    input: someInput,
    error: "no",
    time: { start: 1, end: 1 },
    reason,
    effects: ToolEffects.NONE,
  };
  return create(ToolPartSchema, { ...names(ref), state: { case: "error", value } });
}

export function callSpec(fields: Partial<CallSpec> = {}): CallSpec {
  return {
    principal: "alice",
    requestDigest: "digest",
    timeoutMs: 0,
    providerId: "",
    modelId: "",
    definitionId: "definition",
    accepted: 1,
    ...fields,
  };
}

/** A delegated call as its host described it. */
export const delegation: Delegation = {
  kind: "claude",
  tool: "Bash",
  directory: "/work",
  isDiskShared: true,
  askMs,
  collectMs: 600_000,
};

type Opened = Partial<Parameters<CallStore["openCall"]>[0]>;

/** Opens a call for `owner`; the session must exist. */
export async function openCall(
  { calls }: Pick<OpenedStore, "calls">,
  ref: CallRef,
  fields: Opened = {},
): Promise<CallRecord> {
  const call = { ref, part: pending(ref), spec: callSpec(), owner, leaseMs, maxOpenCalls: 1_000, ...fields };
  return (await calls.openCall(call)).record;
}

/** Opens a call that another call of the session made and waits for. */
export function openChild(store: Pick<OpenedStore, "calls">, ref: CallRef, parent: string): Promise<CallRecord> {
  return openCall(store, ref, { part: childPart(pending(ref), parent), spec: callSpec({ parent }) });
}

/** Returns the part of a call that another call made. */
export function childPart(part: ToolPart, parentCallId: string): ToolPart {
  return { ...part, parentCallId };
}

export function fenceOf({ ref, owner, epoch }: CallRecord): Fence {
  return { ref, owner, epoch };
}

/** Opens and starts a call for `owner`. */
export async function startCall(store: OpenedStore, ref: CallRef): Promise<Fence> {
  const record = await openCall(store, ref);
  const fence = fenceOf(record);
  await store.calls.startCall({ fence, version: record.version, part: running(ref) });
  return fence;
}

/** The worker process that runs the bodies of a test. */
export const remote: RemoteMark = {
  principal: "ci",
  instance: "wrk_1",
  connection: 1,
  assignment: "random/ses_root/call_1",
  resumeMs: 30_000,
};

/** Opens a call whose body a worker runs, and starts it in a second step. */
export async function startRemoteCall(store: OpenedStore, ref: CallRef): Promise<Fence> {
  const record = await openCall(store, ref);
  const fence = fenceOf(record);
  await store.calls.startCall({ fence, version: record.version, part: running(ref), remote });
  return fence;
}

export function ask(
  ref: CallRef,
  id: string,
  { calls }: OpenedStore,
  fields: MessageInitShape<typeof PermissionRequestSchema> = {},
): PermissionRequest {
  return create(PermissionRequestSchema, {
    id,
    sessionId: ref.sessionId,
    permission: "bash",
    patterns: ["make"],
    tool: create(PermissionToolContextSchema, { messageId: "msg_1", callId: ref.callId }),
    agent: "build",
    created: calls.now(),
    expires: calls.now() + askMs,
    ...fields,
  });
}

interface OpenAsksOptions {
  notices?: readonly NewNotice[];
  /** Further fields of the requests. */
  fields?: MessageInitShape<typeof PermissionRequestSchema>;
  withdraw?: readonly string[];
  maxOpenAsks?: number;
  /** Ends the lease of the call. */
  dueMs?: number;
}

/** Opens asks of a call at its present version. */
export async function openAsks(
  store: OpenedStore,
  ref: CallRef,
  ids: readonly string[],
  { withdraw = [], maxOpenAsks = 1_000, dueMs, notices, fields }: OpenAsksOptions = {},
): Promise<boolean> {
  const record = await recordOf(store, ref);
  const asks = ids.map((id) => ask(ref, id, store, fields));
  const step = { fence: { ...fenceOf(record), owner }, version: record.version, asks, withdraw, maxOpenAsks };
  const rest = { ...(dueMs !== undefined && { dueMs }), ...(notices && { notices }) };
  return store.calls.openAsks({ ...step, message: "changed", ...rest });
}

/** Opens a call with the asks of these ids. */
export async function openAskedCall(store: OpenedStore, ref: CallRef, ids: readonly string[]): Promise<void> {
  await openCall(store, ref);
  await openAsks(store, ref, ids);
}

/** Opens a call that waits for the asks of these ids without an owner. */
export async function openWaitingCall(store: OpenedStore, ref: CallRef, ids: readonly string[]): Promise<void> {
  await openCall(store, ref);
  await openAsks(store, ref, ids, { dueMs: day });
}

export async function recordOf({ calls }: OpenedStore, { sessionId, callId }: CallRef): Promise<CallRecord> {
  const record = await calls.getCall(sessionId, callId);
  if (record === undefined) throw new Error(`no call ${callId}`);
  return record;
}

export function settled(
  ref: CallRef,
  permissionId: string,
  outcome: PermissionOutcome = PermissionOutcome.ONCE,
  by = "bob",
): PermissionSettled {
  const { sessionId, callId } = ref;
  return create(PermissionSettledSchema, { permissionId, sessionId, callId, outcome, by, time: 1 });
}

/** Time after which the first of two steps of a request is due; the second is due after twice that. */
export const stepMs = 60_000;

/** Opens a request of a call with two steps. */
export async function openEscalating(
  store: OpenedStore,
  ref: CallRef,
  id: string,
  notices: readonly NewNotice[] = [],
): Promise<void> {
  await openCall(store, ref);
  const steps = [1, 2].map((count) => ({ at: store.calls.now() + count * stepMs, to: [`lead_${count}`] }));
  await openAsks(store, ref, [id], { dueMs: 86_400_000, notices, fields: { escalations: steps } });
}

/** Takes the first step of a request that is left. */
export async function escalationOf(store: OpenedStore, ref: CallRef, id: string): Promise<Escalation> {
  const found = await store.permissions.getAsk(ref.sessionId, id);
  if (!found) throw new Error(`no ask ${id}`);
  const { request, version } = found;
  const next = request.escalations.find(({ taken }) => taken === 0);
  const escalations = request.escalations.map((each) => (each === next ? { ...each, taken: each.at } : each));
  return { call: ref, version, request: { ...request, escalations }, notices: [], decisions: [] };
}

/** Builds an answer to one ask of a call, at the call's present version. */
export async function answer(
  store: OpenedStore,
  ref: CallRef,
  id: string,
  { outcome, by, ...fields }: Partial<Settlement> & { outcome?: PermissionOutcome; by?: string } = {},
): Promise<Settlement> {
  const { version } = await recordOf(store, ref);
  return {
    root: ref.root,
    askId: id,
    settled: [settled(ref, id, outcome, by)],
    calls: [{ ref, version }],
    grants: [],
    expired: false,
    ...fields,
  };
}

/** Builds a vote that leaves an ask open: these persons have voted then. */
export async function ballot(
  store: OpenedStore,
  ref: CallRef,
  id: string,
  voters: readonly string[],
): Promise<Settlement> {
  const found = await store.permissions.getAsk(ref.sessionId, id);
  if (!found) throw new Error(`no ask ${id}`);
  const votes = voters.map((person) => voteOf(person));
  return await answer(store, ref, id, { settled: [], voted: [{ ...found.request, votes }] });
}

export const voteOf = (person: string): Vote =>
  create(VoteSchema, { person: create(PersonSchema, { id: person }), outcome: PermissionOutcome.ONCE, by: person });

export function grant(id: string, fields: MessageInitShape<typeof GrantSchema> = {}): Grant {
  return create(GrantSchema, {
    id,
    scope: GrantScope.SESSION,
    sessionId: "ses_root",
    permission: "bash",
    match: create(GrantMatchSchema, { match: { case: "exact", value: "make" } }),
    text: "make, in this session",
    workspace: "default",
    tool: "bash",
    grantedBy: "bob",
    created: 1,
    ...fields,
  });
}

/** Saves a grant by answering an ask with it, which is the only way. */
export async function saveGrant(store: OpenedStore, given: Grant): Promise<void> {
  const ref = callRef(`call_of_${given.id}`, given.sessionId, given.sessionId);
  const id = `per_of_${given.id}`;
  await openAskedCall(store, ref, [id]);
  const always = await answer(store, ref, id, { outcome: PermissionOutcome.ALWAYS, grants: [given] });
  const result = await store.permissions.settle(always);
  if (result.result !== "won") throw new Error(`the grant was not saved: ${result.result}`);
}

/** Reads the whole log, page by page. */
export async function logOf(
  { calls }: Pick<OpenedStore, "calls">,
  sessionId = "ses_root",
  after = 0,
): Promise<SessionEvent[]> {
  const page = await calls.readLog(sessionId, after, 64 * 1024);
  const last = page.events.at(-1);
  return last === undefined ? [] : [...page.events, ...(await logOf({ calls }, sessionId, Number(last.seq)))];
}

/** Describes each event in a few words. */
export function kinds(events: readonly SessionEvent[]): string[] {
  return events.map(({ event }) => {
    switch (event.case) {
      case "part":
        return `${event.value.callId} ${event.value.state.case}`;
      case "permissionAsked":
        return `${event.value.id} asked`;
      case "permissionSettled":
        return `${event.value.permissionId} ${PermissionOutcomeSchema.value[event.value.outcome]?.localName}`;
      case "permissionVoted":
        return `${event.value.permissionId} voted ${event.value.votes.map(({ by }) => by).join(" ")}`;
      case "permissionEscalated":
        return `${event.value.permissionId} escalated ${event.value.escalations.filter(({ taken }) => taken > 0).length}`;
      case "granted":
      case "revoked":
        return `${event.value.id} ${event.case}`;
      default:
        return event.case ?? "nothing";
    }
  });
}

/** Returns the reason of the refusal that a promise rejects with, and the limit that it names. */
export async function refusal(promise: Promise<unknown>): Promise<{ reason: ErrorReason; limit?: string | undefined }> {
  const error = await promise.then(
    () => new Error("the step was not refused"),
    (cause: unknown) => cause,
  );
  if (!(error instanceof RequestError)) throw error;
  return { reason: error.reason, limit: error.metadata.limit };
}
