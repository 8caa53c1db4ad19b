import { randomUUID } from "node:crypto";
import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore, OpenCallStep, OpenedCall, Store } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { noSuchSession } from "../../core/request-error.ts";
import type { WorkerDirectory } from "../../core/worker-directory.ts";
import type { CredentialTable } from "../../people/ports.ts";
import type { ExportStore, NoticeStore } from "../../reach/ports.ts";
import { checkEnded, DamagedRecord } from "../parts.ts";
import { openRecordTables, type RecordTables, recordKinds } from "../record-tables.ts";
import { createDamage, type Damage, parentEnded, refuseBackup, sessionClosed, tooManyCalls } from "../refusals.ts";
import { auditDays, auditRetention } from "../retention.ts";
import { adoptConfirmedClock } from "./adopt-clock.ts";
import { createRedisAsks, type RedisAsks } from "./asks.ts";
import { callName, createHeldCalls, createRedisCallRecords } from "./call-records.ts";
import { storeFormat } from "./contents.ts";
import type { CopySettings } from "./copies.ts";
import { createRedisCredentials } from "./credentials.ts";
import { encodeEvent, encodePart, encodeSealedJson } from "./events.ts";
import { createRedisExports, type RedisExports } from "./exports.ts";
import { createGrantSlots } from "./grant-slots.ts";
import {
  type GrantContext,
  listStoredGrants,
  readServingGrants,
  runAdoptGrant,
  runConfirmGrant,
  runRevokeGrant,
  runTakeGrant,
} from "./grants.ts";
import { createKeys, type Keys } from "./keys.ts";
import { type Link, openLink } from "./link.ts";
import { createLive } from "./live.ts";
import { createRedisAudit, createRedisLog, type RedisAudit, type RedisLog } from "./log.ts";
import { createFollowed, createRedisNews, type RedisNews } from "./news.ts";
import { createRedisNotices } from "./notices.ts";
import { createRedisOutputs } from "./outputs.ts";
import { createRedisTable, createRedisToolMemory } from "./record-table.ts";
import { createLeases, createUnclaimedNotices, listenToReplicas, type UnclaimedNotices } from "./replica-news.ts";
import { number, replyList, text } from "./reply.ts";
import {
  createSessionContext,
  listStoredSessions,
  readRepeats,
  readSession,
  runCloseSession,
  runCreateSession,
  type SessionContext,
} from "./sessions.ts";
import { runSettlement } from "./settle.ts";
import { callStepKeys, createSteps, type RedisCallContext } from "./steps.ts";
import { createRedisSweep } from "./sweep.ts";
import {
  runEscalation,
  runFinishCall,
  runNoteCall,
  runNoteReport,
  runOpenAsks,
  runParkCall,
  runPrepareCall,
  runRebindCall,
  runRecordDecisions,
  runRecordEvents,
  runRequestCancel,
  runRestartCall,
  runStartCall,
  runTakeOver,
} from "./transitions.ts";
import { createTrees } from "./trees.ts";
import { databaseOf, parseRedisUrl } from "./url.ts";
import { createRedisDirectory } from "./worker-directory.ts";

/** State of an open Redis store. */
interface RedisContext extends RedisCallContext, GrantContext, SessionContext {
  readonly link: Link;
  readonly keys: Keys;
  readonly log: Logger;
  readonly sessionLog: RedisLog;
  readonly news: RedisNews;
  readonly unclaimed: UnclaimedNotices;
  readonly asks: RedisAsks;
  readonly audit: RedisAudit;
  readonly damage: Damage;
  readonly auditMs: number;
  readonly auditMaxMs: number;
  readonly exports: RedisExports;
  readonly stopListening: () => Promise<void>;
}

/**
 * Opens the store in a Redis, which any number of replicas can share. Redis' clock decides leases and deadlines. Each
 * transition is one script.
 */
export async function openRedisStore(options: {
  /** See `parseRedisUrl`. */
  url: string;
  /** Prefix of all keys. */
  prefix?: string;
  log: Logger;
  limits?: { events: number; bytes: number };
  copies?: CopySettings;
  /** Days for which the audit is retained. */
  auditDays?: number | undefined;
  /** Names of the receivers of the audit, and days for which retention waits for them. */
  receivers?: readonly string[];
  auditMaxDays?: number | undefined;
  /** File in which this replica stores what it knows of the servers' histories. */
  historyFile?: string;
  /** File in which this replica stores how far the counter of the store was raised, by which it notices a restore. */
  counterFile?: string;
  /** Replaces Redis' clock, in tests. */
  clock?: () => number;
  /** Wraps the link, in tests. */
  through?: (link: Link) => Link;
}): Promise<
  Store &
    RecordTables & {
      credentials: CredentialTable;
      notices: NoticeStore;
      exports: ExportStore;
      workerDirectory: WorkerDirectory;
      backUp(): AsyncIterable<Uint8Array>;
    }
> {
  const { url, log, clock, limits = { events: 100_000, bytes: 16 * 1024 * 1024 } } = options;
  const address = parseRedisUrl(url);
  const keys = createKeys(options.prefix ?? "toolgate", databaseOf(address));
  const replica = randomUUID();
  const defaults = {
    ...{ replica, limits, channel: keys.news },
    rememberMs: operationMemoryMs,
  };
  const opened = await openLink({
    address,
    keys,
    defaults,
    clock,
    log,
    replica,
    historyFile: options.historyFile,
    counterFile: options.counterFile,
    copies: options.copies ?? {},
  });
  const link = options.through?.(opened) ?? opened;

  const damage = createDamage(log, "stop the service and restore the files of Redis from a backup");
  const trees = createTrees({ link, keys });
  const live = createLive({ link, keys, replica });
  await adoptConfirmedClock({ link, keys, live, log });
  const sessionLog = createRedisLog({ link, keys, trees });
  const news = createRedisNews(sessionLog);
  const followed = createFollowed();
  const exports = createRedisExports({ link, keys }, options.receivers ?? []);
  const runStep = createSteps({ link, keys, news, log: sessionLog, followed, exports });
  const records = createRedisCallRecords({ link, keys, trees });
  const unclaimed = createUnclaimedNotices({ link, keys, replica });
  const credentials = await createRedisCredentials({ link, keys, replica });
  const tables = await openRecordTables((kind) => createRedisTable({ link, keys, replica }, kind));
  const named = Object.entries(recordKinds).map(
    ([key, { name }]) => [name, tables[key as keyof RecordTables]] as const,
  );
  const stopListening = await listenToReplicas({
    ...{ address, link, keys, trees, live, news, sessionLog, followed, unclaimed, replica, log },
    tables: new Map<string, { refresh(): Promise<void> }>([...named, ["credentials", credentials]]),
  });
  const context: RedisContext = {
    ...createSessionContext({ link, keys, trees, runStep }),
    ...{ live, records, log, sessionLog, news, unclaimed, stopListening, now: link.now },
    held: createHeldCalls(),
    slots: createGrantSlots({ link, keys }),
    asks: createRedisAsks({ link, keys, trees, live, records, damage }),
    audit: createRedisAudit({ link, keys }),
    exports,
    ...auditRetention(options, auditDays.redis),
    damage,
  };
  const outputs = createRedisOutputs({ link, keys });
  const ports = {
    calls: refusingDamage(callStoreOf(context), damage),
    permissions: refusingDamage(permissionStoreOf(context), damage),
    notices: refusingDamage(createRedisNotices(context), damage),
    exports: exports.port,
    outputs,
  };
  const workerDirectory = createRedisDirectory({ link, keys });
  return { ...ports, credentials, ...tables, workerDirectory, backUp: refuseBackup };
}

function callStoreOf(context: RedisContext): CallStore {
  const { link, keys, records, asks, sessionLog, news, unclaimed, slots } = context;
  const leases = createLeases({ ...context, drainOutbox: slots.drainOutbox });
  return {
    get storeId() {
      return link.storeId;
    },
    storeIdOf(root) {
      const generation = link.generationOf(root);
      // Without a number at first, as versions wrote it that know no generations: replicas of both serve one store during an upgrade.
      return generation === 0 ? link.storeId : `${link.storeId}.${generation}`;
    },
    verifyIds: link.verifyIds,
    format: storeFormat,
    isShared: true,
    now: link.now,
    createSession: (session) => runCreateSession(context, session),
    getSession: (id) => readSession(context, id),
    listSessions: (filter) => listStoredSessions(context, filter),
    closeSession: (id) => runCloseSession(context, id),
    openCall: (opened) => runOpenCall(context, opened),
    openAsks: (opened) => runOpenAsks(context, opened),
    rebindCall: (rebound) => runRebindCall(context, rebound),
    prepareCall: (prepared) => runPrepareCall(context, prepared),
    noteCall: (noted) => runNoteCall(context, noted),
    startCall: (started) => runStartCall(context, started),
    recordEvents: (fence, events) => runRecordEvents(context, fence, events),
    finishCall: (finished) => runFinishCall(context, finished),
    requestCancel: (...cancel) => runRequestCancel(context, ...cancel),
    noteReport: (ref, decisions) => runNoteReport(context, ref, decisions),
    claimCall: (ref, owner, leaseMs, maxAttempts = 1) =>
      runTakeOver(context, "claim_call", ref, { owner, leaseMs, maxAttempts }),
    parkCall: (...parked) => runParkCall(context, ...parked),
    resumeCall: (ref, owner, leaseMs) => runTakeOver(context, "resume_call", ref, { owner, leaseMs }),
    adoptCall: (ref, mark, owner, leaseMs) =>
      runTakeOver(context, "adopt_call", ref, { owner, leaseMs, mark, remote: JSON.stringify(mark) }),
    restartCall: (...restarted) => runRestartCall(context, ...restarted),
    renewLeases: leases.renew,
    releaseCalls: leases.release,
    orphans: leases.orphans,
    announceUnclaimed: unclaimed.announce,
    onUnclaimed: unclaimed.subscribe,
    sweep: createRedisSweep(context),
    getCall: records.get,
    getCallWithAsks: asks.withCall,
    getCallOfAsk: asks.callOf,
    findAssigned: records.findAssigned,
    repeatsOf: (sessionId, requestDigest) => readRepeats(context, sessionId, requestDigest),
    findDelegated: records.findDelegated,
    listCalls: records.list,
    ...createRedisToolMemory({ link, keys }),
    // Redis stores events without the fields that the log's key and entry imply, so none is stored in one piece.
    bytesOf: () => undefined,
    readLog: sessionLog.read,
    onNews: news.subscribe,
    ready: async () => context.damage.first() === undefined && (await link.ready()),
    safety: link.safety,
    sizes: async () => ({}),
    async agrees(digest, takes) {
      const names = { policy: keys.policy, replaced: keys.replacedPolicies };
      const values = { digest, takes, holdMs: policyHoldMs, replacedMs: policyReplacedMs };
      return text(await link.run("agree_on_policy", names, values)) === digest;
    },
    async close() {
      await context.stopListening();
      await link.close();
    },
  };
}

function permissionStoreOf(context: RedisContext): PermissionStore {
  const { asks, audit, slots } = context;
  return {
    getAsk: asks.get,
    findAsk: asks.find,
    asksOf: asks.ofCall,
    openAsks: asks.listOpen,
    openRequests: asks.listRequests,
    countOpenAsks: asks.countOpen,
    countLongAsks: asks.countLong,
    dueAsks: asks.due,
    escalate: (escalation) => runEscalation(context, escalation),
    settle: (settlement) => runSettlement(context, settlement),
    grantsFor: (tree) => readServingGrants(context, tree),
    adoptGrant: (root, id) => runAdoptGrant(context, root, id),
    takeGrant: (call, id) => runTakeGrant(context, call, id),
    getGrant: async (id) => (await slots.find(id))?.grant,
    listGrants: (filter) => listStoredGrants(context, filter),
    revokeGrant: (id, decisions) => runRevokeGrant(context, id, decisions),
    confirmGrant: (id, decisions) => runConfirmGrant(context, id, decisions),
    recordDecisions: (root, decisions) => runRecordDecisions(context, root, decisions),
    listDecisions: audit.list,
    listAudits: audit.gone,
  };
}

/** Time for which the answer of an operation is remembered; longer than any retry of it. */
const operationMemoryMs = 20_000;

/** Time for which a policy is held after the last announcement by a replica. */
const policyHoldMs = 30_000;

/** Time for which only a reload takes a policy that was replaced. */
const policyReplacedMs = 600_000;

/** Wraps the functions of a port: one that reads a damaged record refuses with STORE_DAMAGED, and the log names the record. */
function refusingDamage<Port extends object>(port: Port, damage: Pick<Damage, "refusal">): Port {
  const refuse = (error: unknown) => {
    throw error instanceof DamagedRecord ? damage.refusal(error) : error;
  };
  const wrapped = Object.entries(Object.getOwnPropertyDescriptors(port)).map(([name, property]) => {
    const { value: run } = property;
    if (typeof run !== "function") return [name, property] as const;
    const value = (...args: unknown[]) => {
      const result: unknown = run(...args);
      return result instanceof Promise ? result.catch(refuse) : result;
    };
    return [name, { ...property, value }] as const;
  });
  return Object.defineProperties({}, Object.fromEntries(wrapped)) as Port;
}

/** open_call: lists the tree as live, then accepts the call, or reads the existing one with that id. */
async function runOpenCall(context: RedisCallContext, opened: OpenCallStep): Promise<OpenedCall> {
  const { keys, trees, live, records, held, runStep } = context;
  const { ref, spec, owner, leaseMs, maxOpenCalls, unrecordedCalls = 0, maxRepeats } = opened;
  const { root, sessionId, callId } = ref;
  const tree = keys.tree(root);
  const name = callName(ref);
  const pending = encodePart(sessionId, name, opened.part);
  const start = opened.start && encodePart(sessionId, "start", opened.start);
  if (opened.end) checkEnded(opened.end);
  const end = opened.end && encodePart(sessionId, "end", opened.end);
  const reads = [...(opened.reads ?? [])].flat();
  const progress = opened.progress && encodeEvent(sessionId, { case: "progress", value: opened.progress });
  const bytes = { ...pending.bytes, ...start?.bytes, ...end?.bytes, progress };
  const names = {
    ...{ calls: tree.calls(sessionId), open: tree.open(sessionId), leases: tree.leases },
    ...callStepKeys(context, ref),
    ...(opened.delegated && { callOf: tree.callOf }),
    ...(end && { ended: tree.ended }),
    ...(reads.length > 0 && { reads: tree.reads }),
    ...(spec.parent !== undefined && { parent: tree.call(callName({ sessionId, callId: spec.parent })) }),
  };
  const values = {
    ...{ session: sessionId, callId, name, owner, leaseMs, maxOpenCalls: maxOpenCalls - unrecordedCalls, maxRepeats },
    request: spec.requestDigest,
    spec: encodeSealedJson(spec),
    collectMs: spec.delegated?.collectMs,
    ...(reads.length > 0 && { reads }),
    remote: opened.remote && JSON.stringify(opened.remote),
    ...(opened.queued && { queued: opened.queued, unclaimed: [[root, sessionId, callId]] }),
    ...opened.delegated,
  };

  // Before the start, so that a call is found by every assignment that is given out.
  if (opened.delegated) await trees.pointTo(opened.delegated.assignment, root);
  for (let generation = await live.enter(root); ; ) {
    // From here on a failover that loses work refuses the step.
    opened.checkStore?.();
    const [result, value, last, repeats, begun, waits] = replyList(
      await runStep("open_call", root, names, { ...values, generation }, bytes, opened.decisions),
    );
    switch (text(result)) {
      case "opened": {
        const openedSeq = number(value);
        const started = number(begun);
        const assignment = started === 1 ? opened.delegated?.assignment : undefined;
        const ended = started === 1 && end !== undefined;
        const queued =
          number(waits) === 1 && opened.queued ? { owner: "", queuedUntil: opened.queued.until } : undefined;
        if (assignment !== undefined) await trees.keepPointer(assignment);
        else if (queued) await live.sooner(root, context.now());
        else if (!ended) held.add(owner, ref);
        const { part: written } = started === 1 ? (end ?? start ?? pending) : pending;
        const part = { ...written, revision: BigInt(number(last)) };
        const version = 1 + started + (ended ? 1 : 0);
        const versions = { version, epoch: 1, attempts: started, repeats: number(repeats) };
        const remote = started === 1 && opened.remote ? { remote: opened.remote } : {};
        const holder = assignment !== undefined ? { owner: "", assignment } : { owner: ended ? "" : owner };
        return { record: { ref, part, spec, openedSeq, ...holder, ...versions, ...remote, ...queued }, created: true };
      }
      case "generation":
        generation = await live.reenter(root, number(value));
        continue;
      case "no session":
        throw noSuchSession(sessionId);
      case "closed":
        throw sessionClosed(sessionId);
      case "no parent":
        throw parentEnded(sessionId, spec.parent ?? "");
      case "full":
        throw tooManyCalls(sessionId, maxOpenCalls, spec.delegated !== undefined);
      default: {
        const record = await records.find(ref);
        if (record !== undefined) return { record, created: false };
      }
    }
  }
}
