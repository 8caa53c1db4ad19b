import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import {
  DecisionKind,
  DecisionRecordSchema,
  GrantScope,
  PermissionOutcome,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Escalation, Settlement } from "../../src/approval/ports.ts";
import type {
  Fence,
  FinishCallStep,
  OpenAsksStep,
  OpenCallStep,
  RebindCallStep,
  StartCallStep,
} from "../../src/call/ports.ts";
import type { CallRef } from "../../src/core/call-ref.ts";
import type { ExportStore, NewNotice, NotedExport, NoticeStore } from "../../src/reach/ports.ts";
import type { RemoteMark } from "../../src/tool/remote.ts";
import {
  addSession,
  addTree,
  answer,
  ask,
  askMs,
  ballot,
  callRef,
  callSpec,
  childPart,
  completed,
  delegation,
  escalationOf,
  failed,
  fenceOf,
  grant,
  leaseMs,
  type OpenedStore,
  openAskedCall,
  openAsks,
  openCall,
  openChild,
  openEscalating,
  openWaitingCall,
  owner,
  pending,
  recordOf,
  remote,
  running,
  saveGrant,
  settled,
  startCall,
  startRemoteCall,
  stepMs,
} from "./fixture.ts";

/** A transition with a valid step, and the guards that the step can violate. */
export interface GuardedTransition<Step = unknown> {
  readonly transition: string;
  /** Brings an empty store into a state in which the returned step is valid. */
  prepare(store: OpenedStore): Promise<Step>;
  run(store: OpenedStore, step: Step): Promise<unknown>;
  /** Answer to the valid step; only the named fields of an object are compared. */
  readonly accepted: unknown;
  readonly guards: readonly Guard<Step>[];
}

/** One way to violate one guard. The step must then leave every record, event and decision as it was. */
export interface Guard<Step> {
  readonly guard: string;
  readonly violation: string;
  /** Changes the store, or returns a changed step. */
  // biome-ignore lint/suspicious/noConfusingVoidType: most rows change the store and return nothing.
  violate(store: OpenedStore, step: Step): Promise<Step | void> | Step;
  /** The expected answer; `{ refused }` for a refusal, `{ thrown }` for a defect of the caller. */
  readonly answer: unknown;
}

const ref = callRef();
const deep = callRef("call_deep", "ses_grandchild");
const other = "replica_2";
const child = callRef("call_1.1");
const endedChild = (version: number) => ({ ref: child, version, part: childPart(failed(child), ref.callId) });
const decisions = [create(DecisionRecordSchema, { kind: DecisionKind.ALLOWED, sessionId: "ses_root", digest: "void" })];
const large = "x".repeat(1024 * 1024);
const tree = { root: "ses_root", workspace: "default", agent: "build" };

const { EXPIRED, REJECT, WITHDRAWN } = PermissionOutcome;
const closed = { refused: ErrorReason.SESSION_CLOSED };
const noSession = { refused: ErrorReason.NO_SUCH_SESSION };
const quota = (limit: string) => ({ refused: ErrorReason.QUOTA_EXCEEDED, limit });

/** Violations of the fence, which most steps of a call share. `maxAttempts` lets a started call be claimed. */
function fenceGuards<Step extends { fence: Fence }>(refused: unknown, maxAttempts = 1): readonly Guard<Step>[] {
  return [
    {
      guard: "fence",
      violation: "another replica sends the step",
      violate: (_, step) => ({ ...step, fence: { ...step.fence, owner: other } }),
      answer: refused,
    },
    {
      guard: "fence",
      violation: "the epoch is not the call's",
      violate: (_, step) => ({ ...step, fence: { ...step.fence, epoch: step.fence.epoch + 1 } }),
      answer: refused,
    },
    {
      guard: "fence",
      violation: "another replica has claimed the call",
      violate: async (store, { fence }) => claim(store, fence.ref, other, maxAttempts),
      answer: refused,
    },
    {
      guard: "fence",
      violation: "the owner has claimed its call again",
      violate: async (store, { fence }) => claim(store, fence.ref, owner, maxAttempts),
      answer: refused,
    },
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: (_, step) => ({ ...step, fence: { ...step.fence, ref: callRef("call_none") } }),
      answer: refused,
    },
    {
      guard: "call open",
      violation: "the call has ended",
      violate: (store, { fence }) => end(store, fence.ref),
      answer: refused,
    },
  ];
}

async function claim(store: OpenedStore, call: CallRef, by: string, maxAttempts: number): Promise<void> {
  store.advance(leaseMs);
  const claimed = await store.calls.claimCall(call, by, leaseMs, maxAttempts);
  if (claimed === undefined) throw new Error("the call was not claimed");
}

async function end(store: OpenedStore, call: CallRef): Promise<void> {
  const { version } = await recordOf(store, call);
  const ended = await store.calls.finishCall({ ref: call, guard: { version }, part: failed(call) });
  if (ended === undefined) throw new Error("the call did not end");
}

async function openPending(store: OpenedStore): Promise<Fence> {
  await addTree(store);
  return fenceOf(await openCall(store, ref));
}

async function openRunning(store: OpenedStore): Promise<Fence> {
  await addTree(store);
  return startCall(store, ref);
}

const createSession: GuardedTransition<{ id: string; parentSessionId: string; title: string }> = {
  transition: "createSession",
  async prepare(store) {
    await addTree(store);
    return { id: "ses_new", parentSessionId: "ses_child", title: "second" };
  },
  run: ({ calls }, step) => calls.createSession(create(SessionSchema, { ...step, owner: "alice", created: 1 })),
  accepted: { id: "ses_new", title: "second", rootSessionId: "ses_root" },
  guards: [
    {
      guard: "id free",
      violation: "a session has this id",
      violate: (store, { id }) => addSession(store, id, { title: "first", parentSessionId: "ses_child" }),
      answer: { title: "first" },
    },
    {
      guard: "parent exists",
      violation: "no session has the parent's id",
      violate: (_, step) => ({ ...step, parentSessionId: "ses_none" }),
      answer: noSession,
    },
    {
      guard: "parent open",
      violation: "the parent is closed",
      violate: async ({ calls }) => void (await calls.closeSession("ses_child")),
      answer: closed,
    },
    {
      guard: "parent open",
      violation: "an ancestor was closed, and the parent with it",
      violate: async ({ calls }) => void (await calls.closeSession("ses_root")),
      answer: closed,
    },
  ],
};

const closeSession: GuardedTransition<string> = {
  transition: "closeSession",
  async prepare(store) {
    await addTree(store);
    return "ses_child";
  },
  run: ({ calls }, id) => calls.closeSession(id),
  accepted: [],
  guards: [
    { guard: "session exists", violation: "no session has this id", violate: () => "ses_none", answer: noSession },
    {
      guard: "session open",
      violation: "the session is closed already",
      violate: async ({ calls }, id) => void (await calls.closeSession(id)),
      answer: [],
    },
  ],
};

const openCallStep: GuardedTransition<OpenCallStep> = {
  transition: "openCall",
  async prepare(store) {
    await addTree(store);
    const guards = { owner, leaseMs, maxOpenCalls: 2, maxRepeats: 0 };
    return { ref: deep, part: pending(deep), start: running(deep), spec: callSpec(), ...guards, decisions };
  },
  run: ({ calls }, step) => calls.openCall(step),
  accepted: { created: true, record: { attempts: 1 } },
  guards: [
    {
      guard: "session exists",
      violation: "no session has this id",
      violate: (_, step) => ({ ...step, ref: callRef("call_deep", "ses_none", "ses_none") }),
      answer: noSession,
    },
    {
      guard: "session open",
      violation: "the session is closed",
      violate: async ({ calls }) => void (await calls.closeSession("ses_grandchild")),
      answer: closed,
    },
    {
      guard: "session open",
      violation: "an ancestor was closed, and the session with it",
      violate: async ({ calls }) => void (await calls.closeSession("ses_root")),
      answer: closed,
    },
    {
      guard: "parent open",
      violation: "no call has the parent's id",
      violate: (_, step) => ({ ...step, spec: callSpec({ parent: "call_none" }) }),
      answer: { refused: ErrorReason.NO_SUCH_CALL },
    },
    {
      guard: "parent open",
      violation: "the parent has ended",
      async violate(store, step) {
        const parent = { ...deep, callId: "call_parent" };
        await openCall(store, parent).then(() => end(store, parent));
        return { ...step, spec: callSpec({ parent: "call_parent" }) };
      },
      answer: { refused: ErrorReason.NO_SUCH_CALL },
    },
    {
      guard: "id free",
      violation: "a call has this id",
      violate: async (store) => void (await openCall(store, deep, { owner: other })),
      answer: { created: false, record: { owner: other, attempts: 0 } },
    },
    {
      guard: "id free",
      violation: "a call with this id has ended",
      violate: async (store) => void (await openCall(store, deep).then(() => end(store, deep))),
      answer: { created: false, record: { part: { state: { case: "error" } } } },
    },
    {
      guard: "quota of open calls",
      violation: "the session has as many open calls as it may",
      async violate(store) {
        for (const id of ["call_1", "call_2"]) await openCall(store, { ...deep, callId: id });
      },
      answer: quota("running_calls"),
    },
    {
      guard: "event size",
      violation: "the part is larger than 1 MiB",
      violate: (_, step) => ({ ...step, part: pending(deep, { text: large }) }),
      answer: quota("event_bytes"),
    },
  ],
};

const claimCall: GuardedTransition<{ ref: CallRef; maxAttempts: number }> = {
  transition: "claimCall",
  async prepare(store) {
    await openPending(store);
    store.advance(leaseMs);
    return { ref, maxAttempts: 1 };
  },
  run: ({ calls }, step) => calls.claimCall(step.ref, other, leaseMs, step.maxAttempts),
  accepted: { owner: other, epoch: 2, version: 2 },
  guards: [
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: (_, step) => ({ ...step, ref: callRef("call_none") }),
      answer: undefined,
    },
    {
      guard: "lease lapsed",
      violation: "its owner has renewed the lease",
      violate: async ({ calls }) => void (await calls.renewLeases(owner, leaseMs)),
      answer: undefined,
    },
    {
      guard: "lease lapsed",
      violation: "the lease has one millisecond left",
      async violate(store) {
        await store.calls.renewLeases(owner, leaseMs);
        store.advance(leaseMs - 1);
      },
      answer: undefined,
    },
    {
      guard: "lease lapsed",
      violation: "another replica was first",
      violate: async ({ calls }) => void (await calls.claimCall(ref, "replica_3", leaseMs)),
      answer: undefined,
    },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: undefined },
    {
      guard: "attempts",
      violation: "the call was started",
      violate: (store) => startAndLapse(store, 1),
      answer: undefined,
    },
    {
      guard: "attempts",
      violation: "the call was started as often as it may be",
      async violate(store, step) {
        await startAndLapse(store, 2);
        await startAndLapse(store, 2);
        return { ...step, maxAttempts: 2 };
      },
      answer: undefined,
    },
  ],
};

/** Starts the call again and lets its lease lapse. */
async function startAndLapse(store: OpenedStore, maxAttempts: number): Promise<void> {
  const claimed = await store.calls.claimCall(ref, "replica_3", leaseMs, maxAttempts);
  if (claimed === undefined) throw new Error("the call was not claimed");
  await store.calls.startCall({ fence: fenceOf(claimed), version: claimed.version, part: running(ref) });
  store.advance(leaseMs);
}

const again = { definitionId: "definition", until: 1_900_000_000_000 };

/** Violations of the mark by which a worker names its run of a body. */
function markGuards(refused: unknown): readonly Guard<{ ref: CallRef; mark: RemoteMark }>[] {
  const change =
    (field: keyof RemoteMark, value: string) => (_: OpenedStore, step: { ref: CallRef; mark: RemoteMark }) => ({
      ...step,
      mark: { ...step.mark, [field]: value },
    });
  return [
    { guard: "mark", violation: "another principal names it", violate: change("principal", "eve"), answer: refused },
    { guard: "mark", violation: "another process names it", violate: change("instance", "wrk_2"), answer: refused },
    { guard: "mark", violation: "it is another run", violate: change("assignment", "other"), answer: refused },
    {
      guard: "connection",
      violation: "the worker has connected again since",
      violate: async ({ calls }) => void (await calls.adoptCall(ref, { ...remote, connection: 3 }, other, leaseMs)),
      answer: refused,
    },
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: (_, step) => ({ ...step, ref: callRef("call_none") }),
      answer: refused,
    },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: refused },
    {
      guard: "started",
      violation: "the call was given back",
      violate: async ({ calls }) => void (await calls.restartCall(ref, remote, again)),
      answer: refused,
    },
    {
      guard: "started",
      violation: "another replica has claimed the call",
      violate: (store) => {
        store.advance(remote.resumeMs);
        return claim(store, ref, other, 2);
      },
      answer: refused,
    },
  ];
}

const adoptCall: GuardedTransition<{ ref: CallRef; mark: RemoteMark }> = {
  transition: "adoptCall",
  async prepare(store) {
    await addTree(store);
    await startRemoteCall(store, ref);
    return { ref, mark: { ...remote, connection: 2 } };
  },
  run: ({ calls }, step) => calls.adoptCall(step.ref, step.mark, other, leaseMs),
  accepted: { owner: other, epoch: 2, version: 3, attempts: 1, remote: { connection: 2 } },
  guards: [
    ...markGuards(undefined),
    {
      guard: "connection",
      violation: "the connection is that of the start",
      violate: (_, step) => ({ ...step, mark: remote }),
      answer: undefined,
    },
    {
      guard: "connection",
      violation: "another replica was first",
      violate: async ({ calls }, { mark }) => void (await calls.adoptCall(ref, mark, "replica_3", leaseMs)),
      answer: undefined,
    },
  ],
};

const restartCall: GuardedTransition<{ ref: CallRef; mark: RemoteMark }> = {
  transition: "restartCall",
  async prepare(store) {
    await addTree(store);
    await startRemoteCall(store, ref);
    return { ref, mark: remote };
  },
  run: ({ calls }, step) => calls.restartCall(step.ref, step.mark, again),
  accepted: true,
  guards: markGuards(false),
};

const rebindCall: GuardedTransition<RebindCallStep> = {
  transition: "rebindCall",
  async prepare(store) {
    await addTree(store);
    await openWaitingCall(store, ref, ["per_1"]);
    const { version } = await recordOf(store, ref);
    return { ref, version, spec: callSpec({ definitionId: "changed" }), message: "changed" };
  },
  run: ({ calls }, step) => calls.rebindCall(step),
  accepted: true,
  guards: [
    {
      guard: "version",
      violation: "the version is not the call's",
      violate: (_, step) => ({ ...step, version: step.version - 1 }),
      answer: false,
    },
    {
      guard: "no owner",
      violation: "a replica has claimed the call",
      async violate(store, step) {
        await claim(store, ref, other, 1);
        return { ...step, version: (await recordOf(store, ref)).version };
      },
      answer: false,
    },
    {
      guard: "not started",
      violation: "the call was started, and its lease has lapsed",
      async violate(store, step) {
        await claim(store, ref, other, 1);
        const { epoch, version } = await recordOf(store, ref);
        await store.calls.startCall({ fence: { ref, owner: other, epoch }, version, part: running(ref) });
        store.advance(leaseMs + 1);
        return { ...step, version: (await recordOf(store, ref)).version };
      },
      answer: false,
    },
    {
      guard: "call open",
      violation: "the call has ended",
      async violate(store, step) {
        await end(store, ref);
        return { ...step, version: (await recordOf(store, ref)).version };
      },
      answer: false,
    },
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: (_, step) => ({ ...step, ref: callRef("call_none") }),
      answer: false,
    },
  ],
};

const claimRemoteCall: GuardedTransition<CallRef> = {
  transition: "claimCall of a started call of a worker",
  async prepare(store) {
    await addTree(store);
    await startRemoteCall(store, ref);
    store.advance(leaseMs + remote.resumeMs);
    return ref;
  },
  run: ({ calls }, call) => calls.claimCall(call, other, leaseMs, 3),
  accepted: { owner: other, epoch: 2, attempts: 1 },
  guards: [
    {
      guard: "worker away",
      violation: "its owner renewed the lease one millisecond too late",
      async violate(store) {
        await store.calls.renewLeases(owner, leaseMs);
        store.advance(leaseMs + remote.resumeMs - 1);
      },
      answer: undefined,
    },
    {
      guard: "worker away",
      violation: "another replica has adopted the call",
      violate: async ({ calls }) =>
        void (await calls.adoptCall(ref, { ...remote, connection: 2 }, "replica_3", leaseMs)),
      answer: undefined,
    },
  ],
};

const parkCall: GuardedTransition<{ fence: Fence }> = {
  transition: "parkCall",
  async prepare(store) {
    const fence = await openRunning(store);
    await openChild(store, child, ref.callId);
    return { fence };
  },
  run: ({ calls }, { fence }) => calls.parkCall(fence, leaseMs),
  accepted: true,
  guards: [
    ...fenceGuards<{ fence: Fence }>(false, 2).filter(({ violation }) => violation !== "the call has ended"),
    {
      guard: "open children",
      violation: "its only child has ended",
      async violate({ calls }) {
        await calls.finishCall({ ref: child, guard: { version: 1 }, part: childPart(failed(child), ref.callId) });
      },
      answer: false,
    },
    {
      guard: "started",
      violation: "the call is pending",
      async violate(store) {
        const parent = callRef("call_2");
        const record = await openCall(store, parent);
        await openChild(store, callRef("call_2.1"), parent.callId);
        return { fence: fenceOf(record) };
      },
      answer: false,
    },
  ],
};

const resumeCall: GuardedTransition<CallRef> = {
  transition: "resumeCall",
  async prepare(store) {
    await openRunning(store);
    store.advance(leaseMs);
    return ref;
  },
  run: ({ calls }, call) => calls.resumeCall(call, other, leaseMs),
  accepted: { owner: other, epoch: 2, version: 3, attempts: 1 },
  guards: [
    { guard: "call exists", violation: "no call has this id", violate: () => callRef("call_none"), answer: undefined },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: undefined },
    {
      guard: "lease lapsed",
      violation: "its owner has renewed the lease",
      violate: async ({ calls }) => void (await calls.renewLeases(owner, leaseMs)),
      answer: undefined,
    },
    {
      guard: "lease lapsed",
      violation: "another replica was first",
      violate: async ({ calls }) => void (await calls.resumeCall(ref, "replica_3", leaseMs)),
      answer: undefined,
    },
    {
      guard: "started",
      violation: "the call is pending",
      async violate(store) {
        const waiting = callRef("call_2");
        await openCall(store, waiting);
        store.advance(leaseMs);
        return waiting;
      },
      answer: undefined,
    },
  ],
};

const prepareCall: GuardedTransition<{ fence: Fence }> = {
  transition: "prepareCall",
  prepare: async (store) => ({ fence: await openPending(store) }),
  run: ({ calls }, step) => calls.prepareCall({ ...step, part: pending(ref, { command: "make -n" }) }),
  accepted: true,
  guards: [
    ...fenceGuards<{ fence: Fence }>(false),
    {
      guard: "not started",
      violation: "the call is running",
      violate: async ({ calls }, { fence }) => void (await calls.startCall({ fence, version: 1, part: running(ref) })),
      answer: false,
    },
    {
      guard: "not prepared",
      violation: "the call is prepared already",
      violate: async ({ calls }, { fence }) => void (await calls.prepareCall({ fence })),
      answer: false,
    },
  ],
};

const noteCall: GuardedTransition<{ fence: Fence }> = {
  transition: "noteCall",
  prepare: async (store) => ({ fence: await openPending(store) }),
  run: ({ calls }, step) => calls.noteCall({ ...step, hooked: "{}", decisions }),
  accepted: true,
  guards: fenceGuards(false),
};

const startCallStep: GuardedTransition<StartCallStep> = {
  transition: "startCall",
  async prepare(store) {
    const fence = await openPending(store);
    const wide = grant("grt_wide", { scope: GrantScope.PROJECT, sessionId: "ses_other" });
    await addSession(store, "ses_other");
    await saveGrant(store, wide);
    await store.permissions.adoptGrant("ses_root", wide.id);
    const { rulesVersion } = await store.permissions.grantsFor(tree);
    return { fence, version: 1, rulesVersion, grantIds: [wide.id], part: running(ref), decisions };
  },
  run: ({ calls }, step) => calls.startCall(step),
  accepted: "started",
  guards: [
    ...fenceGuards<StartCallStep>("fenced"),
    {
      guard: "lease alive",
      violation: "the lease has lapsed",
      violate: async (store) => store.advance(leaseMs),
      answer: "fenced",
    },
    {
      guard: "lease alive",
      violation: "the owner has released the call",
      violate: ({ calls }) => calls.releaseCalls(owner),
      answer: "fenced",
    },
    {
      guard: "not started",
      violation: "the call is running",
      async violate({ calls }, step) {
        await calls.startCall({ fence: step.fence, version: step.version, part: step.part });
        return { ...step, version: step.version + 1 };
      },
      answer: "fenced",
    },
    {
      guard: "version",
      violation: "the call has opened an ask",
      violate: async (store) => void (await openAsks(store, ref, ["per_1"])),
      answer: "retry",
    },
    {
      guard: "version",
      violation: "the input was edited",
      async violate(store, step) {
        await openAsks(store, ref, ["per_1"]);
        const calls = [{ ref, version: 2, part: pending(ref, { command: "make test" }) }];
        await store.permissions.settle(await answer(store, ref, "per_1", { outcome: PermissionOutcome.EDITED, calls }));
        return { ...step, version: 2 };
      },
      answer: "retry",
    },
    {
      guard: "version",
      violation: "the before-hooks have run",
      violate: async ({ calls }, { fence }) => void (await calls.prepareCall({ fence })),
      answer: "retry",
    },
    {
      guard: "version",
      violation: "its cancellation was requested",
      violate: ({ calls }) => calls.requestCancel(ref, "stop"),
      answer: "retry",
    },
    {
      guard: "rules version",
      violation: "a grant was saved",
      violate: (store) => saveGrant(store, grant("grt_1")),
      answer: "retry",
    },
    {
      guard: "rules version",
      violation: "an adopted grant was revoked",
      violate: async ({ permissions }) => void (await permissions.revokeGrant("grt_wide")),
      answer: "retry",
    },
    {
      guard: "rules version",
      violation: "an adopted grant was revoked a second time",
      async violate({ permissions }, step) {
        await permissions.revokeGrant("grt_wide");
        const { rulesVersion } = await permissions.grantsFor(tree);
        await permissions.revokeGrant("grt_wide");
        return { ...step, rulesVersion };
      },
      answer: "retry",
    },
    {
      guard: "a use left",
      violation: "another call has taken the last use",
      async violate(store, step) {
        await saveGrant(store, grant("grt_1", { times: 1, left: 1 }));
        const counted = [{ id: "grt_1", times: 1 }];
        const other = callRef("call_2");
        await store.calls.startCall({
          ...{ fence: fenceOf(await openCall(store, other)), version: 1, counted },
          part: running(other),
        });
        const { rulesVersion } = await store.permissions.grantsFor(tree);
        return { ...step, rulesVersion, counted };
      },
      answer: "retry",
    },
    {
      guard: "a use left",
      violation: "the counted grant is unknown",
      violate: (_, step) => ({ ...step, counted: [{ id: "grt_none", times: 1 }] }),
      answer: "retry",
    },
    {
      guard: "event size",
      violation: "the part is larger than 1 MiB",
      violate: (_, step) => ({ ...step, part: { ...running(ref), agent: large } }),
      answer: quota("event_bytes"),
    },
  ],
};

const openAsksStep: GuardedTransition<OpenAsksStep> = {
  transition: "openAsks",
  async prepare(store) {
    await addTree(store);
    const record = await openCall(store, deep);
    const { rulesVersion } = await store.permissions.grantsFor(tree);
    const limits = { withdraw: [], message: "changed", maxOpenAsks: 2 };
    const asks = [ask(deep, "per_1", store), ask(deep, "per_2", store)];
    const notices = [noticeOf(store)];
    return { fence: fenceOf(record), version: record.version, rulesVersion, asks, notices, ...limits, decisions };
  },
  run: ({ calls }, step) => calls.openAsks(step),
  accepted: true,
  guards: [
    ...fenceGuards<OpenAsksStep>(false),
    {
      guard: "version",
      violation: "the call has opened an ask",
      violate: async (store) => void (await openAsks(store, deep, ["per_0"])),
      answer: false,
    },
    {
      guard: "rules version",
      violation: "a grant was saved",
      violate: (store) => saveGrant(store, grant("grt_1")),
      answer: false,
    },
    {
      guard: "quota of open asks",
      violation: "another call of the tree has an open ask",
      violate: (store) => openAskedCall(store, ref, ["per_0"]),
      answer: quota("open_asks"),
    },
  ],
};

const recordEvents: GuardedTransition<{ fence: Fence; title: string }> = {
  transition: "recordEvents",
  prepare: async (store) => ({ fence: await openRunning(store), title: "one" }),
  run: ({ calls }, { fence, title }) =>
    calls.recordEvents(fence, [create(ToolProgressSchema, { callId: "call_1", title })]),
  accepted: true,
  guards: [
    ...fenceGuards<{ fence: Fence; title: string }>(false, 2),
    {
      guard: "started",
      violation: "the call is pending",
      violate: async (store, step) => ({ ...step, fence: fenceOf(await openCall(store, callRef("call_2"))) }),
      answer: false,
    },
    {
      guard: "started",
      violation: "the call was claimed to be started again",
      async violate(store, step) {
        store.advance(leaseMs);
        const claimed = await store.calls.claimCall(ref, other, leaseMs, 2);
        return claimed ? { ...step, fence: fenceOf(claimed) } : step;
      },
      answer: false,
    },
    {
      guard: "event size",
      violation: "the event is larger than 1 MiB",
      violate: (_, step) => ({ ...step, title: large }),
      answer: quota("event_bytes"),
    },
  ],
};

const finishCallOfOwner: GuardedTransition<Omit<FinishCallStep, "guard"> & { fence: Fence }> = {
  transition: "finishCall by the owner",
  async prepare(store) {
    const fence = await openRunning(store);
    return { fence, ref, part: completed(ref), decisions };
  },
  run: ({ calls }, { fence, ...step }) => calls.finishCall({ ...step, ref: fence.ref, guard: { fence } }),
  accepted: { state: { case: "completed" } },
  guards: [
    ...fenceGuards<Omit<FinishCallStep, "guard"> & { fence: Fence }>(undefined, 2),
    {
      guard: "terminal part",
      violation: "the part is running",
      violate: (_, step) => ({ ...step, part: running(ref) }),
      answer: { thrown: "call_1" },
    },
    {
      guard: "event size",
      violation: "the part is larger than 1 MiB",
      violate: (_, step) => ({ ...step, part: completed(ref, large) }),
      answer: quota("event_bytes"),
    },
    {
      guard: "open children",
      violation: "the call has an open child",
      violate: async (store) => void (await openChild(store, child, ref.callId)),
      answer: "open children",
    },
    {
      guard: "open children",
      violation: "a child has opened an ask since it was read",
      async violate(store, step) {
        const { version } = await openChild(store, child, ref.callId);
        await openAsks(store, child, ["per_1"]);
        return { ...step, children: [endedChild(version)] };
      },
      answer: "open children",
    },
    {
      guard: "open children",
      violation: "a child has made a call",
      async violate(store, step) {
        const { version } = await openChild(store, child, ref.callId);
        await openChild(store, callRef("call_1.1.1"), child.callId);
        return { ...step, children: [endedChild(version)] };
      },
      answer: "open children",
    },
    {
      guard: "open children",
      violation: "the named child has ended",
      async violate(store, step) {
        const { version } = await openChild(store, child, ref.callId);
        const part = childPart(failed(child), ref.callId);
        await store.calls.finishCall({ ref: child, guard: { version }, part });
        return { ...step, children: [endedChild(version)] };
      },
      answer: "open children",
    },
  ],
};

const finishCallOfOther: GuardedTransition<FinishCallStep & { guard: { version: number } }> = {
  transition: "finishCall by another",
  async prepare(store) {
    await openRunning(store);
    return { ref, guard: { version: 2 }, part: failed(ref), decisions };
  },
  run: ({ calls }, step) => calls.finishCall(step),
  accepted: { state: { case: "error" } },
  guards: [
    {
      guard: "version",
      violation: "the version was read before the start",
      violate: (_, step) => ({ ...step, guard: { version: 1 } }),
      answer: undefined,
    },
    {
      guard: "version",
      violation: "the call has opened an ask",
      violate: async (store) => void (await openAsks(store, ref, ["per_1"])),
      answer: undefined,
    },
    {
      guard: "call open",
      violation: "the call has ended",
      async violate(store, step) {
        await end(store, ref);
        return { ...step, guard: { version: 3 } };
      },
      answer: undefined,
    },
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: (_, step) => ({ ...step, ref: callRef("call_none") }),
      answer: undefined,
    },
  ],
};

const requestCancel: GuardedTransition<CallRef> = {
  transition: "requestCancel",
  async prepare(store) {
    await openRunning(store);
    return ref;
  },
  run: async (store, call) => {
    await store.calls.requestCancel(call, "second");
    return (await store.calls.getCall(call.sessionId, call.callId))?.cancel;
  },
  accepted: "second",
  guards: [
    {
      guard: "first message",
      violation: "its cancellation was requested already",
      violate: ({ calls }) => calls.requestCancel(ref, "first"),
      answer: "first",
    },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: undefined },
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: () => callRef("call_none"),
      answer: undefined,
    },
  ],
};

const renewLeases: GuardedTransition<string> = {
  transition: "renewLeases",
  async prepare(store) {
    await openRunning(store);
    return owner;
  },
  run: ({ calls }, by) => calls.renewLeases(by, leaseMs),
  accepted: [ref],
  guards: [
    { guard: "owner", violation: "another replica renews", violate: () => other, answer: [] },
    {
      guard: "owner",
      violation: "another replica has claimed the call",
      violate: (store) => claim(store, ref, other, 2),
      answer: [],
    },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: [] },
  ],
};

const releaseCalls: GuardedTransition<string> = {
  transition: "releaseCalls",
  async prepare(store) {
    await openPending(store);
    return owner;
  },
  async run(store, by) {
    await store.calls.releaseCalls(by);
    return (await store.calls.orphans()).length;
  },
  accepted: 1,
  guards: [
    { guard: "owner", violation: "another replica releases", violate: () => other, answer: 0 },
    {
      guard: "not started",
      violation: "the call is running",
      async violate({ calls }) {
        const fence = { ref, owner, epoch: 1 };
        await calls.startCall({ fence, version: 1, part: running(ref) });
      },
      answer: 0,
    },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: 0 },
  ],
};

const settle: GuardedTransition<Settlement> = {
  transition: "settle",
  async prepare(store) {
    await addTree(store);
    await openNotice(store);
    const { asksVersion } = await store.permissions.grantsFor(tree);
    return answer(store, ref, "per_1", { asksVersion, grants: [grant("grt_1")], decisions });
  },
  async run({ permissions }, settlement) {
    const outcome = await permissions.settle(settlement);
    return { settled: undefined, ...outcome };
  },
  accepted: { result: "won" },
  guards: [
    {
      guard: "ask exists",
      violation: "no ask has this id",
      violate: (_, step) => ({ ...step, askId: "per_none" }),
      answer: { result: "lost", settled: undefined },
    },
    {
      guard: "ask open",
      violation: "another answer was first",
      violate: async (store) =>
        void (await store.permissions.settle(await answer(store, ref, "per_1", { by: "carol" }))),
      answer: { result: "lost", settled: { by: "carol" } },
    },
    {
      guard: "ask open",
      violation: "the call has ended and withdrawn it",
      violate: (store) => end(store, ref),
      answer: { result: "lost", settled: { outcome: WITHDRAWN } },
    },
    {
      guard: "deadline",
      violation: "the deadline has passed",
      violate: async (store) => store.advance(askMs),
      answer: { result: "lost", settled: undefined },
    },
    {
      guard: "deadline",
      violation: "an expiry comes one millisecond too early",
      async violate(store, step) {
        store.advance(askMs - 1);
        return { ...step, settled: [settled(ref, "per_1", EXPIRED, "")], expired: true };
      },
      answer: { result: "lost", settled: undefined },
    },
    {
      guard: "version",
      violation: "the call was changed",
      violate: ({ calls }) => calls.requestCancel(ref, "stop"),
      answer: { result: "retry" },
    },
    {
      guard: "version",
      violation: "another call that it settles has ended",
      async violate(store, step) {
        await openCall(store, deep);
        const before = await recordOf(store, deep);
        await end(store, deep);
        return { ...step, calls: [...step.calls, { ref: deep, version: before.version }] };
      },
      answer: { result: "retry" },
    },
    {
      guard: "other asks open",
      violation: "an ask that follows from it does not exist",
      violate: (_, step) => ({ ...step, settled: [...step.settled, settled(ref, "per_none")] }),
      answer: { result: "retry" },
    },
    {
      guard: "other asks open",
      violation: "an ask that follows from it is settled",
      async violate(store, step) {
        await openAskedCall(store, deep, ["per_2"]);
        await store.permissions.settle(await answer(store, deep, "per_2"));
        const { asksVersion } = await store.permissions.grantsFor(tree);
        return { ...step, asksVersion, settled: [...step.settled, settled(deep, "per_2")] };
      },
      answer: { result: "retry" },
    },
    {
      guard: "asks version",
      violation: "another call of the tree has opened an ask",
      violate: (store) => openAskedCall(store, deep, ["per_2"]),
      answer: { result: "retry" },
    },
    {
      guard: "event size",
      violation: "the part of one of its calls is larger than 1 MiB",
      async violate(store, step) {
        await openCall(store, deep);
        const ended = [
          { ref, version: 2, part: failed(ref) },
          { ref: deep, version: 1, part: completed(deep, large) },
        ];
        return { ...step, settled: [settled(ref, "per_1", REJECT)], calls: ended };
      },
      answer: quota("event_bytes"),
    },
  ],
};

const settleWithVote: GuardedTransition<Settlement> = {
  transition: "settle with a vote that leaves the ask open",
  async prepare(store) {
    await addTree(store);
    await openWaitingCall(store, ref, ["per_1"]);
    return { ...(await ballot(store, ref, "per_1", ["ann"])), decisions };
  },
  async run({ permissions }, settlement) {
    const outcome = await permissions.settle(settlement);
    return { settled: undefined, ...outcome };
  },
  accepted: { result: "won" },
  guards: [
    {
      guard: "ask open",
      violation: "an answer was first",
      violate: async (store) =>
        void (await store.permissions.settle(await answer(store, ref, "per_1", { by: "carol" }))),
      answer: { result: "lost", settled: { by: "carol" } },
    },
    {
      guard: "deadline",
      violation: "the deadline has passed",
      violate: async (store) => store.advance(askMs),
      answer: { result: "lost", settled: undefined },
    },
    {
      guard: "version",
      violation: "another vote was first",
      violate: async (store) => void (await store.permissions.settle(await ballot(store, ref, "per_1", ["carol"]))),
      answer: { result: "retry" },
    },
    {
      guard: "other asks open",
      violation: "an ask that gets a vote as well is settled",
      async violate(store, step) {
        await openAskedCall(store, deep, ["per_2"]);
        const other = await ballot(store, deep, "per_2", ["ann"]);
        await store.permissions.settle(await answer(store, deep, "per_2"));
        return { ...step, voted: [...(step.voted ?? []), ...(other.voted ?? [])] };
      },
      answer: { result: "retry" },
    },
  ],
};

const escalateAsk: GuardedTransition<Escalation> = {
  transition: "escalate an ask",
  async prepare(store) {
    await addTree(store);
    await openEscalating(store, ref, "per_1");
    store.advance(stepMs);
    return { ...(await escalationOf(store, ref, "per_1")), decisions };
  },
  run: ({ permissions }, step) => permissions.escalate(step),
  accepted: true,
  guards: [
    {
      guard: "once",
      violation: "another replica was first",
      violate: async (store) => void (await store.permissions.escalate(await escalationOf(store, ref, "per_1"))),
      answer: false,
    },
    {
      guard: "due",
      violation: "the next step lies ahead",
      async violate(store, step) {
        await store.permissions.escalate(await escalationOf(store, ref, "per_1"));
        store.advance(stepMs - 1);
        return { ...(await escalationOf(store, ref, "per_1")), decisions: step.decisions };
      },
      answer: false,
    },
    {
      guard: "version",
      violation: "a vote was first",
      violate: async (store) => void (await store.permissions.settle(await ballot(store, ref, "per_1", ["carol"]))),
      answer: false,
    },
    {
      guard: "ask open",
      violation: "the ask is settled",
      async violate(store, step) {
        await store.permissions.settle(await answer(store, ref, "per_1"));
        return { ...step, version: (await recordOf(store, ref)).version };
      },
      answer: false,
    },
    {
      guard: "call open",
      violation: "the call has ended",
      async violate(store, step) {
        const { version } = await recordOf(store, ref);
        await store.calls.finishCall({ ref, guard: { version }, part: failed(ref) });
        return { ...step, version: version + 1 };
      },
      answer: false,
    },
    {
      guard: "deadline",
      violation: "the deadline has passed",
      violate: async (store) => store.advance(askMs),
      answer: false,
    },
  ],
};

const settleWithStart: GuardedTransition<Settlement> = {
  transition: "settle with the start of the call",
  async prepare(store) {
    await addTree(store);
    await openWaitingCall(store, ref, ["per_1"]);
    const start = { owner: other, leaseMs, part: running(ref) };
    return answer(store, ref, "per_1", { calls: [{ ref, version: 2, start }], decisions });
  },
  async run({ permissions }, settlement) {
    const outcome = await permissions.settle(settlement);
    return { settled: undefined, ...outcome };
  },
  accepted: { result: "won" },
  guards: [
    {
      guard: "ask open",
      violation: "another answer was first",
      violate: async (store) =>
        void (await store.permissions.settle(await answer(store, ref, "per_1", { by: "carol" }))),
      answer: { result: "lost", settled: { by: "carol" } },
    },
    {
      guard: "deadline",
      violation: "the deadline has passed",
      violate: async (store) => store.advance(askMs),
      answer: { result: "lost", settled: undefined },
    },
    {
      guard: "version",
      violation: "its cancellation was requested",
      violate: ({ calls }) => calls.requestCancel(ref, "stop"),
      answer: { result: "retry" },
    },
    {
      guard: "version",
      violation: "another replica has claimed the call",
      violate: async ({ calls }) => void (await calls.claimCall(ref, "replica_3", leaseMs)),
      answer: { result: "retry" },
    },
    {
      guard: "no owner",
      violation: "another replica has claimed the call",
      async violate({ calls }, step) {
        await calls.claimCall(ref, "replica_3", leaseMs);
        return { ...step, calls: step.calls.map((call) => ({ ...call, version: call.version + 1 })) };
      },
      answer: { result: "retry" },
    },
    {
      guard: "not started",
      violation: "the body that asks runs",
      async violate(store, step) {
        const asking = callRef("call_running");
        await startCall(store, asking);
        await openAsks(store, asking, ["per_2"], { dueMs: leaseMs });
        const calls = step.calls.map((call) => ({ ...call, ref: asking, version: 3 }));
        return { ...step, askId: "per_2", settled: [settled(asking, "per_2")], calls };
      },
      answer: { result: "retry" },
    },
    {
      guard: "no other ask",
      violation: "the call waits for another ask",
      async violate(store, step) {
        const asking = callRef("call_asking");
        await openWaitingCall(store, asking, ["per_2", "per_3"]);
        const calls = step.calls.map((call) => ({ ...call, ref: asking }));
        return { ...step, askId: "per_2", settled: [settled(asking, "per_2")], calls };
      },
      answer: { result: "retry" },
    },
    {
      guard: "event size",
      violation: "the running part is larger than 1 MiB",
      violate: (_, step) => ({
        ...step,
        calls: step.calls.map((call) => ({
          ...call,
          start: { owner: other, leaseMs, part: { ...running(ref), agent: large } },
        })),
      }),
      answer: quota("event_bytes"),
    },
  ],
};

const adoptGrant: GuardedTransition<string> = {
  transition: "adoptGrant",
  async prepare(store) {
    await addTree(store);
    await addSession(store, "ses_other");
    await saveGrant(store, grant("grt_1", { scope: GrantScope.PROJECT, expires: store.calls.now() + 1_000 }));
    return "grt_1";
  },
  run: ({ permissions }, id) => permissions.adoptGrant("ses_other", id),
  accepted: true,
  guards: [
    { guard: "grant exists", violation: "no grant has this id", violate: () => "grt_none", answer: false },
    {
      guard: "grant alive",
      violation: "the grant was revoked",
      violate: async ({ permissions }, id) => void (await permissions.revokeGrant(id)),
      answer: false,
    },
    {
      guard: "grant alive",
      violation: "the grant has expired",
      violate: async (store) => store.advance(1_000),
      answer: false,
    },
  ],
};

const takeGrant: GuardedTransition<string> = {
  transition: "takeGrant",
  async prepare(store) {
    await addTree(store);
    await addSession(store, "ses_other");
    await saveGrant(store, grant("grt_1", { scope: GrantScope.PROJECT, times: 1, left: 1 }));
    return "grt_1";
  },
  run: ({ permissions }, id) => permissions.takeGrant(ref, id),
  accepted: true,
  guards: [
    { guard: "grant exists", violation: "no grant has this id", violate: () => "grt_none", answer: false },
    {
      guard: "a use left",
      violation: "another call has taken the last use",
      violate: async ({ permissions }, id) =>
        void (await permissions.takeGrant(callRef("call_2", "ses_other", "ses_other"), id)),
      answer: false,
    },
  ],
};

const revokeGrant: GuardedTransition<string> = {
  transition: "revokeGrant",
  async prepare(store) {
    await addTree(store);
    await saveGrant(store, grant("grt_1"));
    return "grt_1";
  },
  run: ({ permissions }, id) => permissions.revokeGrant(id, decisions),
  accepted: { id: "grt_1" },
  guards: [{ guard: "grant exists", violation: "no grant has this id", violate: () => "grt_none", answer: undefined }],
};

const noteReport: GuardedTransition<CallRef> = {
  transition: "noteReport",
  async prepare(store) {
    await openRunning(store);
    await end(store, ref);
    return ref;
  },
  run: ({ calls }, call) => calls.noteReport(call, decisions),
  accepted: true,
  guards: [
    {
      guard: "call ended",
      violation: "the call is running",
      async violate(store) {
        const running = callRef("call_2");
        await startCall(store, running);
        return running;
      },
      answer: false,
    },
    {
      guard: "first report",
      violation: "a late report was noted already",
      violate: async ({ calls }) => void (await calls.noteReport(ref, [])),
      answer: false,
    },
    { guard: "call exists", violation: "no call has this id", violate: () => callRef("call_none"), answer: false },
  ],
};

const requestCancelOfDelegated: GuardedTransition<CallRef> = {
  transition: "requestCancel of a delegated call",
  async prepare(store) {
    await openRunning(store);
    return ref;
  },
  run: async (store, call) => {
    await store.calls.requestCancel(call, "second", { ...running(call), cancelRequested: true, agent: "second" });
    return (await store.calls.getCall(call.sessionId, call.callId))?.part.agent;
  },
  accepted: "second",
  guards: [
    {
      guard: "first message",
      violation: "its cancellation was requested already",
      violate: ({ calls }) => calls.requestCancel(ref, "first"),
      answer: "build",
    },
    { guard: "call open", violation: "the call has ended", violate: (store) => end(store, ref), answer: "build" },
    {
      guard: "call exists",
      violation: "no call has this id",
      violate: () => callRef("call_none"),
      answer: undefined,
    },
  ],
};

const startDelegated: GuardedTransition<StartCallStep> = {
  transition: "startCall of a delegated call",
  async prepare(store) {
    await addTree(store);
    const record = await openCall(store, ref, { spec: callSpec({ delegated: delegation }) });
    const delegated = { assignment: "hash_1", reportMs: 1_000 };
    return { fence: fenceOf(record), version: 1, part: running(ref), decisions, delegated };
  },
  run: ({ calls }, step) => calls.startCall(step),
  accepted: "started",
  guards: [
    ...fenceGuards<StartCallStep>("fenced"),
    {
      guard: "not started",
      violation: "another request has collected the approval",
      violate: async ({ calls }, step) => void (await calls.startCall(step)),
      answer: "fenced",
    },
    {
      guard: "version",
      violation: "its cancellation was requested",
      violate: ({ calls }) => calls.requestCancel(ref, "stop"),
      answer: "retry",
    },
  ],
};

const noticeOf = ({ calls }: OpenedStore, fields: Partial<NewNotice> = {}): NewNotice => ({
  ...{ ask: "per_1", channel: "ops", recipient: "", dueAt: calls.now(), owner, leaseMs, dead: "" },
  ...fields,
});

/** Opens an ask with a notice. */
async function openNotice(store: OpenedStore, fields: Partial<NewNotice> = {}): Promise<void> {
  await openCall(store, ref);
  await openAsks(store, ref, ["per_1"], { notices: [noticeOf(store, fields)] });
}

const claimNotices: GuardedTransition<Parameters<NoticeStore["claimNotices"]>[0]> = {
  transition: "claimNotices",
  async prepare(store) {
    await addTree(store);
    await openNotice(store, { owner: "" });
    return { owner: other, leaseMs, channels: new Map([["ops", 1]]) };
  },
  run: ({ notices }, step) => notices.claimNotices(step),
  accepted: [{ ask: "per_1", channel: "ops", recipient: "", phase: "opened", attempts: 0, ref: "" }],
  guards: [
    {
      guard: "channel",
      violation: "no notice is for this channel",
      violate: (_, step) => ({ ...step, channels: new Map([["other", 1]]) }),
      answer: [],
    },
    {
      guard: "limit",
      violation: "the replica takes none",
      violate: (_, step) => ({ ...step, channels: new Map([["ops", 0]]) }),
      answer: [],
    },
    {
      guard: "lease lapsed",
      violation: "another replica was first",
      violate: async ({ notices }, step) => void (await notices.claimNotices({ ...step, owner })),
      answer: [],
    },
    {
      guard: "to deliver",
      violation: "the request was answered before",
      violate: async (store) => void (await store.permissions.settle(await answer(store, ref, "per_1"))),
      answer: [],
    },
  ],
};

type NoteStep = Parameters<NoticeStore["noteNotice"]>;

/** One violation for all results: none of them may change a notice that is not the replica's. */
const noteNotice: GuardedTransition<NoteStep> = {
  transition: "noteNotice",
  async prepare(store) {
    await addTree(store);
    await openNotice(store);
    const key = { ask: "per_1", channel: "ops", recipient: "", phase: "opened" } as const;
    return [key, owner, { result: "retry", at: store.calls.now() + 1_000, why: "it answered 503" }];
  },
  run: ({ notices }, step) => notices.noteNotice(...step),
  accepted: undefined,
  guards: [
    {
      guard: "lease",
      violation: "another replica sends the step",
      violate: (_, [key, , result]) => [key, other, result],
      answer: undefined,
    },
    {
      guard: "lease",
      violation: "another replica has claimed the notice",
      async violate(store) {
        store.advance(leaseMs);
        await store.notices.claimNotices({ owner: other, leaseMs, channels: new Map([["ops", 1]]) });
      },
      answer: undefined,
    },
    {
      guard: "phase",
      violation: "it is being sent for its opening, and the step is about the outcome",
      violate: (_, [key, by, result]) => [{ ...key, phase: "settled" }, by, result],
      answer: undefined,
    },
    {
      guard: "recipient",
      violation: "the notice is for no such person",
      violate: (_, [key, by, result]) => [{ ...key, recipient: "prs_1" }, by, result],
      answer: undefined,
    },
    {
      guard: "result open",
      violation: "the result was recorded before",
      violate: async ({ notices }, [key, by]) =>
        notices.noteNotice(key, by, { result: "dead", why: "it answered 400" }),
      answer: undefined,
    },
  ],
};

type ClaimExportStep = Parameters<ExportStore["claimExport"]>;

const claimExport: GuardedTransition<ClaimExportStep> = {
  transition: "claimExport",
  prepare: async () => ["siem", owner, leaseMs],
  run: ({ exports }, step) => exports.claimExport(...step),
  accepted: true,
  guards: [
    {
      guard: "lease lapsed",
      violation: "another replica was first",
      violate: async ({ exports }) => void (await exports.claimExport("siem", other, leaseMs)),
      answer: false,
    },
  ],
};

const noteExport: GuardedTransition<NotedExport> = {
  transition: "noteExport",
  async prepare(store) {
    await addTree(store);
    await store.permissions.recordDecisions("ses_root", decisions);
    await store.exports.claimExport("siem", owner, leaseMs);
    const [entry] = await store.permissions.listDecisions({ root: "ses_root", afterSeq: 0, limit: 1 });
    const cursors = [{ root: "ses_root", seq: 1, hash: entry?.hash ?? "" }];
    return { receiver: "siem", owner, cursors, ended: [], readAt: store.calls.now() };
  },
  run: ({ exports }, step) => exports.noteExport(step),
  accepted: true,
  guards: [
    {
      guard: "lease",
      violation: "another replica has claimed the receiver",
      async violate(store) {
        store.advance(leaseMs);
        await store.exports.claimExport("siem", other, leaseMs);
      },
      answer: false,
    },
  ],
};

/** All guards of all transitions. Each store is tested against each row. */
export const guardedTransitions: readonly GuardedTransition[] = [
  erase(createSession),
  erase(closeSession),
  erase(openCallStep),
  erase(claimCall),
  erase(parkCall),
  erase(resumeCall),
  erase(adoptCall),
  erase(restartCall),
  erase(rebindCall),
  erase(claimRemoteCall),
  erase(prepareCall),
  erase(noteCall),
  erase(startCallStep),
  erase(openAsksStep),
  erase(recordEvents),
  erase(claimNotices),
  erase(noteNotice),
  erase(claimExport),
  erase(noteExport),
  erase(finishCallOfOwner),
  erase(finishCallOfOther),
  erase(requestCancel),
  erase(requestCancelOfDelegated),
  erase(noteReport),
  erase(startDelegated),
  erase(renewLeases),
  erase(releaseCalls),
  erase(settle),
  erase(settleWithVote),
  erase(escalateAsk),
  erase(settleWithStart),
  erase(adoptGrant),
  erase(takeGrant),
  erase(revokeGrant),
];

/** Hides the type of the step, which only the transition itself uses. */
function erase<Step>(guarded: GuardedTransition<Step>): GuardedTransition {
  return guarded as GuardedTransition<never> as GuardedTransition;
}
