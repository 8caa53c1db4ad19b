import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import type { NewsListeners } from "../news-listeners.ts";
import type { SqliteClock } from "./clock.ts";
import type { Commit } from "./commit.ts";
import { statement } from "./database.ts";
import type { DiskSpace } from "./disk-space.ts";
import { sizesOf } from "./free-pages.ts";
import type { DatabaseHealth } from "./health.ts";
import {
  applyAdoptCall,
  applyClaimCall,
  applyParkCall,
  applyRestartCall,
  applyResumeCall,
  listOrphans,
} from "./leases.ts";
import { applyOpenCall, repeatsOfNext } from "./open-call.ts";
import type { OutputFiles } from "./outputs.ts";
import { schemaVersion } from "./schema.ts";
import { applySettlement } from "./settle.ts";
import { createSqliteSweep } from "./sweep.ts";
import type { SqliteTables } from "./tables.ts";
import {
  applyCloseSession,
  applyFinishCall,
  applyNoteCall,
  applyNoteReport,
  applyOpenAsks,
  applyPrepareCall,
  applyRebindCall,
  applyRecordEvents,
  applyRequestCancel,
  applyStartCall,
} from "./transitions.ts";

/** An open database with everything that the ports need. */
export interface OpenedSqlite {
  storeId: string;
  tables: SqliteTables;
  commit: Commit;
  health: DatabaseHealth;
  clock: SqliteClock;
  log: Logger | undefined;
  news: NewsListeners;
  outputs: OutputFiles;
  space: DiskSpace;
  directory: string;
  closeDatabase(): void;
}

/** Creates the ports of calls. */
export function sqliteCallStore({
  storeId,
  tables,
  commit,
  health,
  clock,
  log: logger,
  news,
  outputs,
  space,
  directory,
  closeDatabase,
}: OpenedSqlite): CallStore {
  const { sessions, log, openCalls, records, asks } = tables;
  const { now } = clock;
  const { read } = health;
  // SQLite does not write a row that does not change.
  const probe = statement(
    tables.db,
    "INSERT INTO meta (key, value) VALUES ('probe', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
  );
  let probes = 0;
  return {
    storeId,
    // Nothing that was acknowledged is lost but with the whole file.
    storeIdOf: () => storeId,
    verifyIds: async () => {},
    format: schemaVersion,
    isShared: false,
    now,
    createSession: (session) => commit.run((step) => sessions.create(step, session)),
    getSession: (id) => read(() => sessions.get(id)),
    listSessions: (filter) => read(() => sessions.list(filter)),
    closeSession: (id) => commit.run((step) => applyCloseSession(tables, step, id)),
    openCall: (opened) => commit.run((step) => applyOpenCall(tables, step, opened)),
    openAsks: (opened) => commit.run((step) => applyOpenAsks(tables, step, opened)),
    rebindCall: (rebound) => commit.run((step) => applyRebindCall(tables, step, rebound)),
    prepareCall: (prepared) => commit.run((step) => applyPrepareCall(tables, step, prepared)),
    noteCall: (noted) => commit.run((step) => applyNoteCall(tables, step, noted)),
    startCall: (started) => commit.run((step) => applyStartCall(tables, step, started)),
    recordEvents: (fence, events) => commit.run((step) => applyRecordEvents(tables, step, fence, events)),
    finishCall: (finished) => commit.run((step) => applyFinishCall(tables, step, finished)),
    requestCancel: (...cancel) => commit.run((step) => applyRequestCancel(tables, step, ...cancel)),
    noteReport: (ref, decisions) => commit.run((step) => applyNoteReport(tables, step, ref, decisions)),
    claimCall: (...claim) => commit.run((step) => applyClaimCall(tables, step, ...claim)),
    parkCall: (...parked) => commit.run((step) => applyParkCall(tables, step, ...parked)),
    resumeCall: (...resumed) => commit.run((step) => applyResumeCall(tables, step, ...resumed)),
    adoptCall: (...adopted) => commit.run((step) => applyAdoptCall(tables, step, ...adopted)),
    restartCall: (...restarted) => commit.run((step) => applyRestartCall(tables, step, ...restarted)),
    renewLeases: async (owner, leaseMs) => openCalls.renew(owner, now() + leaseMs),
    releaseCalls: async (owner) => openCalls.release(owner, now()),
    orphans: () => read(() => listOrphans(tables, now())),
    // No other replica shares this store.
    announceUnclaimed: async () => {},
    onUnclaimed: () => () => {},
    sweep: createSqliteSweep({ tables, commit, outputs, clock, log: logger }),
    getCall: (sessionId, callId) => read(() => records.get(sessionId, callId)),
    getCallWithAsks: (ref) =>
      read(() => {
        const record = records.get(ref.sessionId, ref.callId);
        return record && { record, asks: asks.ofCall(ref) };
      }),
    getCallOfAsk: (sessionId, askId) =>
      read(() => {
        const ask = asks.get(sessionId, askId);
        const record = ask && records.get(sessionId, ask.call.callId);
        return record && { record, asks: asks.ofCall(record.ref) };
      }),
    findAssigned: (assignment) => read(() => records.findAssigned(assignment)),
    findDelegated: (sessionId, digest) => read(() => records.findDelegated(sessionId, digest)),
    repeatsOf: (sessionId, requestDigest) => read(() => repeatsOfNext(tables, sessionId, requestDigest)),
    listCalls: (filter) => read(() => records.list(filter)),
    getRead: (root, path) => read(() => sessions.getRead(root, path)),
    recordRead: (root, path, sha256) => commit.run(() => sessions.recordRead(root, path, sha256)),
    getState: ({ sessionId }, name) => read(() => sessions.getState(sessionId, name)),
    setState: ({ sessionId }, name, value) => commit.run(() => sessions.setState(sessionId, name, value)),
    bytesOf: log.bytesOf,
    readLog: (sessionId, afterSeq, maxBytes) => read(() => log.read(sessionId, afterSeq, maxBytes)),
    onNews: news.subscribe,
    async ready() {
      space.measure();
      try {
        await commit.probe((step) => probe.run(`${step.now}.${probes++}`));
        return !space.isLow() && !space.isOutputFull() && !commit.hasFailed() && health.damage() === undefined;
      } catch {
        return false;
      }
    },
    // No other replica shares this store.
    agrees: async () => true,
    safety: () => ({ copies: 0, expected: 0, required: 0, warnings: [] }),
    sizes: () => read(() => sizesOf(tables.db, directory)),
    async close() {
      // A failure is logged; the store closes anyway.
      await commit.run(clock.save).catch(() => {});
      await outputs.close();
      await space.close();
      closeDatabase();
    },
  };
}

/** Creates the ports of approval. */
export function sqlitePermissionStore({ tables, commit, health, clock: { now } }: OpenedSqlite): PermissionStore {
  const { read } = health;
  const { sessions, asks, grants, audit } = tables;
  return {
    getAsk: (sessionId, id) => read(() => asks.get(sessionId, id)),
    findAsk: (id) => read(() => asks.find(id)),
    asksOf: (call) => read(() => asks.ofCall(call)),
    openAsks: (filter) => read(() => asks.listOpen(filter)),
    countOpenAsks: () => read(asks.countAll),
    expiredAsks: (limit) => read(() => asks.expired(now(), limit)),
    settle: (settlement) => commit.run((step) => applySettlement(tables, step, settlement)),
    grantsFor: (tree) => read(() => ({ grants: grants.serving(now(), tree), ...sessions.versions(tree.root) })),
    adoptGrant: (root, id) => commit.run((step) => grants.adopt(step, root, id)),
    getGrant: (id) => read(() => grants.get(id)),
    listGrants: (filter) => read(() => grants.list(now(), filter)),
    revokeGrant: (id, decisions) => commit.run((step) => grants.revoke(step, id, decisions)),
    confirmGrant: (id, decisions) => commit.run((step) => grants.confirm(step, id, decisions)),
    recordDecisions: (root, decisions) => commit.run((step) => audit.append(step, root, decisions)),
    listDecisions: (page) => read(() => audit.list(page)),
    listAudits: (page) => read(() => audit.gone(page)),
  };
}
