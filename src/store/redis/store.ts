import { randomUUID } from "node:crypto";
import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore, Store } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { auditKept } from "../audit.ts";
import { createRedisAsks } from "./asks.ts";
import { createRedisAudit } from "./audit.ts";
import { createRedisCallRecords } from "./call-records.ts";
import { createRedisCalls } from "./calls.ts";
import { createRedisDoorbell } from "./doorbell.ts";
import { createRedisGrants } from "./grants.ts";
import { createHeldCalls } from "./held-calls.ts";
import { day, recordsKept } from "./kept.ts";
import { createKeys } from "./keys.ts";
import { createLeases } from "./leases.ts";
import { type Link, openLink } from "./link.ts";
import { createLive } from "./live.ts";
import { createRedisLog } from "./log.ts";
import { listenToReplicas } from "./news.ts";
import { createRedisOutputs } from "./outputs.ts";
import { text } from "./reply.ts";
import { createRedisSessions } from "./sessions.ts";
import { createRedisSettle } from "./settle.ts";
import { createSteps } from "./steps.ts";
import { createRedisSweep } from "./sweep.ts";
import { createTrees } from "./trees.ts";
import { parseRedisUrl } from "./url.ts";

/**
 * Opens the store in a Redis, which any number of replicas may share. Redis' clock decides leases and deadlines. Each
 * transition is one script, named as the function here or as the file that it is in.
 */
export async function openRedisStore(options: {
  /** See `parseRedisUrl`. */
  url: string;
  /** What all keys begin with. */
  prefix?: string;
  log: Logger;
  limits?: { events: number; bytes: number };
  /** Stands for Redis' clock, in tests. */
  clock?: () => number;
  /** Stands between the store and Redis, in tests. */
  through?: (link: Link) => Link;
}): Promise<Store> {
  const { url, log: logger, clock, limits = { events: 100_000, bytes: 16 * 1024 * 1024 } } = options;
  const address = parseRedisUrl(url);
  const keys = createKeys(options.prefix ?? "toolgate");
  const replica = randomUUID();
  const defaults = {
    replica,
    limits,
    channel: keys.news,
    keepMs: recordsKept + day,
    auditMs: auditKept,
    rememberMs: 20_000,
  };
  const opened = await openLink({ address, keys, defaults, clock, log: logger });
  const link = options.through?.(opened) ?? opened;

  const trees = createTrees({ link, keys });
  const live = createLive({ link, keys });
  const held = createHeldCalls();
  const log = createRedisLog({ link, keys, trees });
  const doorbell = createRedisDoorbell(log);
  const runStep = createSteps({ link, keys, doorbell, log });
  const records = createRedisCallRecords({ link, keys, trees });
  const sessions = createRedisSessions({ link, keys, trees, runStep });
  const asks = createRedisAsks({ link, keys, trees, live, records });
  const calls = createRedisCalls({ keys, trees, live, records, now: link.now, held, runStep });
  const audit = createRedisAudit({ link, keys });
  const grants = createRedisGrants({ link, keys, trees, runStep });
  const leases = createLeases({ link, keys, live, records, held, drainOutbox: grants.drainOutbox });
  const settle = createRedisSettle({ keys, trees, now: link.now, log: logger, grants, held, runStep });
  const outputs = createRedisOutputs({ link, keys });
  const sweep = createRedisSweep({ link, keys, trees, sessions, records, grants, audit });
  const stopListening = await listenToReplicas({
    address,
    link,
    keys,
    trees,
    live,
    doorbell,
    replica,
    log: logger,
  });

  const callStore: CallStore = {
    get storeId() {
      return link.storeId;
    },
    isShared: true,
    now: link.now,
    createSession: sessions.create,
    getSession: sessions.get,
    listSessions: sessions.list,
    closeSession: sessions.close,
    openCall: calls.openCall,
    claimCall: calls.claimCall,
    openAsks: calls.openAsks,
    prepareCall: calls.prepareCall,
    noteCall: calls.noteCall,
    startCall: calls.startCall,
    recordEvents: calls.recordEvents,
    finishCall: calls.finishCall,
    requestCancel: calls.requestCancel,
    renewLeases: leases.renew,
    releaseCalls: leases.release,
    orphans: leases.orphans,
    sweep,
    getCall: records.get,
    getCallWithAsks: asks.withCall,
    repeatsOf: sessions.repeatsOf,
    listCalls: records.list,
    getRead: sessions.getRead,
    recordRead: sessions.recordRead,
    getState: sessions.getState,
    setState: sessions.setState,
    // Here events are kept without what their log says of them, so none is found in one piece.
    bytesOf: () => undefined,
    readLog: log.read,
    onNews: doorbell.listen,
    ready: link.ready,
    async agrees(digest) {
      const held = await link.run("agree_on_policy", { policy: keys.policy }, { digest, holdMs: policyHeldMs });
      return text(held) === digest;
    },
    async close() {
      await stopListening();
      await link.close();
    },
  };

  const permissionStore: PermissionStore = {
    getAsk: asks.get,
    asksOf: asks.ofCall,
    openAsks: asks.listOpen,
    expiredAsks: asks.expired,
    settle,
    grantsFor: grants.serving,
    adoptGrant: grants.adopt,
    getGrant: grants.get,
    listGrants: grants.list,
    revokeGrant: grants.revoke,
    listDecisions: audit.list,
    listAudits: audit.gone,
  };

  return { calls: callStore, permissions: permissionStore, outputs };
}

/** How long a policy is held after the last replica that judges by it said so. */
const policyHeldMs = 30_000;
