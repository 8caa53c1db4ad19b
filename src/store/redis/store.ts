import { randomUUID } from "node:crypto";
import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { DamagedRecord } from "../parts.ts";
import { openRecordTables, type RecordTables, recordKinds, type ServiceStore } from "../record-tables.ts";
import { createDamage, type Damage, refuseBackup } from "../refusals.ts";
import { auditDays, auditRetention } from "../retention.ts";
import { adoptConfirmedClock } from "./adopt-clock.ts";
import { createRedisAsks, type RedisAsks } from "./asks.ts";
import { createHeldCalls, createRedisCallRecords } from "./call-records.ts";
import { storeFormat } from "./contents.ts";
import type { CopySettings } from "./copies.ts";
import { createRedisCredentials } from "./credentials.ts";
import { createRedisExports, type RedisExports } from "./exports.ts";
import { createGrantSlots, type GrantSlots } from "./grant-slots.ts";
import { createRedisGrants } from "./grants.ts";
import { createKeys } from "./keys.ts";
import { type Link, openLink } from "./link.ts";
import { createLive } from "./live.ts";
import { createRedisAudit, createRedisLog, type RedisAudit, type RedisLog } from "./log.ts";
import { createFollowed, createRedisNews, type RedisNews } from "./news.ts";
import { createRedisNotices } from "./notices.ts";
import { createRedisOutputs } from "./outputs.ts";
import { createRedisTable, createRedisToolMemory } from "./record-table.ts";
import { createLeases, createUnclaimedNotices, listenToReplicas, type UnclaimedNotices } from "./replica-news.ts";
import { text } from "./reply.ts";
import { createRedisSessions, type RedisSessions } from "./sessions.ts";
import { runSettlement } from "./settle.ts";
import { createSteps, type RedisCallContext } from "./steps.ts";
import { createRedisSweep } from "./sweep.ts";
import { createRedisTransitions, runEscalation, runRecordDecisions } from "./transitions.ts";
import { createTrees } from "./trees.ts";
import { databaseOf, parseRedisUrl } from "./url.ts";
import { createRedisDirectory } from "./worker-directory.ts";

/** State of an open Redis store. */
interface RedisContext extends RedisCallContext {
  readonly log: Logger;
  readonly sessionLog: RedisLog;
  readonly news: RedisNews;
  readonly unclaimed: UnclaimedNotices;
  readonly sessions: RedisSessions;
  readonly asks: RedisAsks;
  readonly slots: GrantSlots;
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
}): Promise<ServiceStore> {
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
    ...{ link, keys, trees, runStep, live, records, log, sessionLog, news, unclaimed, stopListening, now: link.now },
    held: createHeldCalls(),
    sessions: createRedisSessions({ link, keys, trees, runStep }),
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
    ...context.sessions.port,
    ...createRedisTransitions(context),
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
  const { asks, audit } = context;
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
    ...createRedisGrants(context),
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
