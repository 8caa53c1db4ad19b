import { create } from "@bufbuild/protobuf";
import { PermissionOutcome, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { AskRecord } from "../../src/approval/ports.ts";
import type { CallStore } from "../../src/call/ports.ts";
import { inputOf, pendingPart } from "../../src/call/state.ts";
import type { Config } from "../../src/config/config.ts";
import type { CallRef } from "../../src/core/call-ref.ts";
import type { Logger } from "../../src/core/logger.ts";
import type { ServiceStore } from "../../src/store/record-tables.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";

/** The steps of a call's life at which a replica can be killed or frozen. */
export const points = [
  "before-openCall",
  "after-openCall",
  "before-openAsks",
  "after-openAsks",
  "before-startCall",
  "after-startCall",
  "before-recordEvents",
  "before-finishCall",
  "after-finishCall",
] as const;

/** Builds the id of a call at which the replica with this process id is struck at this point; later owners are not. */
export const struckAt = (name: string, pid: number | undefined, point: string) => `${name}.${pid}.${point}`;

/** A way to break a replica: a signal at the points that calls name, or a disabled protection. */
export type Break =
  | "SIGKILL"
  | "SIGSTOP"
  | "lost calls run again"
  | "every answer wins"
  | "asks need no answer"
  | "the store id never changes"
  | "no operation ids"
  | "leases are not watched"
  | "an event is left out";

/** Wraps the store of a replica with these breaks, joined by commas. */
export function breakStore(store: ServiceStore, how: string): ServiceStore {
  const breaks = new Set<string>(how.split(","));
  return [...breaks].reduce((broken, each) => changes[each]?.(broken) ?? broken, store);
}

const changes: Readonly<Record<string, (store: ServiceStore) => ServiceStore>> = {
  SIGKILL: (store) => ({ ...store, ...strikeAtPoints(store, "SIGKILL") }),
  SIGSTOP: (store) => ({ ...store, ...strikeAtPoints(store, "SIGSTOP") }),
  "lost calls run again": (store) => ({ ...store, calls: reportAsUnstarted(store.calls) }),
  "every answer wins": (store) => ({
    ...store,
    permissions: {
      ...store.permissions,
      settle: async (settlement) => {
        const settled = await store.permissions.settle(settlement);
        return settled.result === "lost" ? { result: "won" } : settled;
      },
    },
    calls: replace(store.calls, {
      async getCallOfAsk(...id) {
        const found = await store.calls.getCallOfAsk(...id);
        for (const ask of found?.asks ?? []) delete ask.settled;
        return found;
      },
    }),
  }),
  "asks need no answer": (store) => ({
    ...store,
    permissions: { ...store.permissions, asksOf: async (call) => (await store.permissions.asksOf(call)).map(approve) },
    calls: replace(store.calls, {
      async getCallWithAsks(ref) {
        const found = await store.calls.getCallWithAsks(ref);
        if (found) found.record.part.permissionIds = [];
        return found && { ...found, asks: found.asks.map(approve) };
      },
      // Recovery finds the call at once, as if its asks were settled.
      openAsks: (step) => store.calls.openAsks(step.dueMs === undefined ? step : { ...step, dueMs: 0 }),
      async claimCall(...claim) {
        const record = await store.calls.claimCall(...claim);
        if (record) record.part.permissionIds = [];
        return record;
      },
    }),
  }),
  "the store id never changes": (store) => ({
    ...store,
    calls: replace(store.calls, { storeId: "sto_same", storeIdOf: () => "sto_same" }),
  }),
  "leases are not watched": (store) => ({ ...store, calls: assumeLeases(store.calls) }),
  "an event is left out": (store) => ({
    ...store,
    calls: replace(store.calls, {
      async readLog(...where) {
        const page = await store.calls.readLog(...where);
        // The last event of a page stays: without it a reader would request that page forever.
        return { ...page, events: page.events.filter(({ seq }, i) => seq % 5n !== 0n || i === page.events.length - 1) };
      },
    }),
  }),
};

/** Opens a store in which Redis forgets the answer of an operation at once. */
export function openWithoutOperationIds({ store }: Config, log: Logger): Promise<ServiceStore> {
  return openRedisStore({
    url: store,
    log,
    through: (link) => ({
      ...link,
      get storeId() {
        return link.storeId;
      },
      run: (name, keys, values, bytes) => link.run(name, keys, { ...values, rememberMs: 1 }, bytes),
    }),
  });
}

/** Replaces members of a store. Its id is fixed at the present one. */
function replace(calls: CallStore, members: Partial<CallStore>): CallStore {
  return { ...calls, ...members };
}

function strikeAtPoints(
  { calls, permissions }: ServiceStore,
  signal: NodeJS.Signals,
): Pick<ServiceStore, "calls" | "permissions"> {
  const struck = new Set<string>();

  function strike(point: string, { callId }: CallRef): void {
    if (!callId.endsWith(struckAt("", process.pid, point)) || struck.has(callId)) return;
    struck.add(callId);
    process.kill(process.pid, signal);
  }

  function around<A extends readonly unknown[], R>(
    name: string,
    work: (...step: A) => Promise<R>,
    refOf: (...step: A) => CallRef,
  ) {
    return async (...step: A): Promise<R> => {
      strike(`before-${name}`, refOf(...step));
      const result = await work(...step);
      strike(`after-${name}`, refOf(...step));
      return result;
    };
  }

  /** A settlement can start calls, too. */
  const settle: typeof permissions.settle = async (settlement) => {
    const started = settlement.calls.filter(({ start }) => start !== undefined);
    for (const { ref } of started) strike("before-startCall", ref);
    const settled = await permissions.settle(settlement);
    for (const { ref } of started) strike("after-startCall", ref);
    return settled;
  };

  const struckCalls = replace(calls, {
    openCall: around(
      "openCall",
      async (call) => {
        const opened = await calls.openCall(call);
        if (call.start) strike("after-startCall", call.ref);
        return opened;
      },
      ({ ref }) => ref,
    ),
    openAsks: around("openAsks", calls.openAsks, ({ fence }) => fence.ref),
    startCall: around("startCall", calls.startCall, ({ fence }) => fence.ref),
    recordEvents: around("recordEvents", calls.recordEvents, ({ ref }) => ref),
    finishCall: around("finishCall", calls.finishCall, ({ ref }) => ref),
  });
  return { calls: struckCalls, permissions: { ...permissions, settle } };
}

/** Returns the ask as if it had been approved. */
function approve(ask: AskRecord): AskRecord {
  const { id: permissionId, sessionId } = ask.request;
  const answer = { permissionId, sessionId, outcome: PermissionOutcome.ONCE };
  return { ...ask, settled: ask.settled ?? create(PermissionSettledSchema, answer) };
}

/** Reports every lease that it ever had as live. */
function assumeLeases(calls: CallStore): CallStore {
  const opened: CallRef[] = [];
  return replace(calls, {
    isShared: false,
    openCall(call) {
      opened.push(call.ref);
      return calls.openCall(call);
    },
    async renewLeases(owner, leaseMs) {
      await calls.renewLeases(owner, leaseMs);
      return opened;
    },
  });
}

/** Reports started calls as not started. */
function reportAsUnstarted(calls: CallStore): CallStore {
  return replace(calls, {
    orphans: async () => (await calls.orphans()).map((orphan) => ({ ...orphan, started: false })),
    async getCall(sessionId, callId) {
      const record = await calls.getCall(sessionId, callId);
      return record && { ...record, attempts: 0 };
    },
    async getCallWithAsks(ref) {
      const found = await calls.getCallWithAsks(ref);
      return found && { ...found, record: { ...found.record, attempts: 0 } };
    },
    async claimCall(ref, owner, leaseMs) {
      const record = await calls.getCall(ref.sessionId, ref.callId);
      if (record?.part.state.case !== "running") return calls.claimCall(ref, owner, leaseMs);
      const { metadata, ...part } = record.part;
      const input = inputOf(record.part);
      return { ...record, attempts: 0, part: pendingPart({ ...part, input, ...(metadata && { metadata }) }) };
    },
    async startCall(step) {
      await calls.startCall(step);
      return "started";
    },
    async recordEvents(fence, events) {
      await calls.recordEvents(fence, events);
      return true;
    },
    async finishCall({ ref, part }) {
      const version = (await calls.getCall(ref.sessionId, ref.callId))?.version ?? 0;
      return calls.finishCall({ ref, guard: { version }, part });
    },
  });
}
