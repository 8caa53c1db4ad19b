import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore, Store } from "../../call/ports.ts";
import type { ConnectorTable } from "../../connector/ports.ts";
import type { Logger } from "../../core/logger.ts";
import type { CredentialTable } from "../../credential/ports.ts";
import { openConnectorFile } from "../connector-file.ts";
import { openLoggedCredentialFile } from "../credential-file.ts";
import { createNewsListeners, type NewsListeners } from "../news-listeners.ts";
import { storeFull } from "../refusals.ts";
import { createSqliteAsks } from "./asks.ts";
import { createSqliteAudit } from "./audit.ts";
import { createSqliteCallRecords } from "./call-records.ts";
import { prepareCallStatements } from "./call-statements.ts";
import { type Commit, createCommit, readNow } from "./commit.ts";
import { openDatabase, statement } from "./database.ts";
import { type DiskSpace, unlimitedSpace, watchDiskSpace } from "./disk-space.ts";
import { createSqliteGrants } from "./grants.ts";
import { applyClaimCall, applyParkCall, applyResumeCall, listOrphans } from "./leases.ts";
import { createSqliteLog, type LogLimits } from "./log.ts";
import { applyOpenCall, repeatsOfNext } from "./open-call.ts";
import { createOpenCallTable } from "./open-calls.ts";
import { createSqliteOutputs, type OutputFiles } from "./outputs.ts";
import { createSqliteSessions } from "./sessions.ts";
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
  applyRecordEvents,
  applyRequestCancel,
  applyStartCall,
} from "./transitions.ts";

/**
 * Opens the embedded store in a data directory, which no other process can use meanwhile. Its clock is this machine's. Reads
 * see committed data only; each write is one transition.
 */
export async function openSqliteStore(options: {
  directory: string;
  clock?: () => number;
  log?: Logger;
  limits?: LogLimits;
  /** Watches the free space of the disk and holds a reserve. Absent: neither. */
  space?: { minFreeBytes?: number | undefined };
}): Promise<Store & { credentials: CredentialTable; connectors: ConnectorTable }> {
  const { directory, log, clock: now = Date.now, limits = { events: 100_000, bytes: 16 * 1024 * 1024 } } = options;
  const { db, storeId, close } = openDatabase(directory);
  const credentials = openLoggedCredentialFile(directory, log);
  const connectors = openConnectorFile(directory);
  const news = createNewsListeners();
  const space: DiskSpace =
    options.space === undefined
      ? unlimitedSpace
      : watchDiskSpace({
          ...{ directory, minFreeBytes: options.space.minFreeBytes, log },
          onRelease: () => shrinkLog(db),
        });
  const commit = createCommit({ db, now, notify: news.notify, log, makeSpace: space.releaseReserve });
  const tables = openTables(db, limits, now, () => {
    if (space.isLow()) throw storeFull();
  });
  const outputs = createSqliteOutputs(join(directory, "output"), space.holds);
  const opened: OpenedSqlite = { storeId, tables, commit, now, news, outputs, space, closeDatabase: close };
  return { calls: callStoreOf(opened), permissions: permissionStoreOf(opened), outputs, credentials, connectors };
}

/** An open database with everything that the ports need. */
interface OpenedSqlite {
  storeId: string;
  tables: SqliteTables;
  commit: Commit;
  now: () => number;
  news: NewsListeners;
  outputs: OutputFiles;
  space: DiskSpace;
  closeDatabase(): void;
}

/** Moves the write-ahead log into the database and truncates it, if there is space for that, and does so more often from now on. */
function shrinkLog(db: DatabaseSync): void {
  try {
    db.exec("PRAGMA wal_autocheckpoint = 100; PRAGMA wal_checkpoint(TRUNCATE)");
  } catch {
    // The log stays as it is; the next checkpoint tries again.
  }
}

function openTables(db: DatabaseSync, limits: LogLimits, now: () => number, checkSpace: () => void): SqliteTables {
  const sessions = createSqliteSessions(db, checkSpace);
  const log = createSqliteLog({ db, sessions, limits });
  const openCalls = createOpenCallTable(db, now());
  const records = createSqliteCallRecords({ db, sessions, openCalls, now });
  const asks = createSqliteAsks({ db, log, records });
  const audit = createSqliteAudit(db, sessions);
  const grants = createSqliteGrants({ db, sessions, log, audit });
  return { db, sessions, log, openCalls, records, asks, audit, grants, callSql: prepareCallStatements(db), checkSpace };
}

function callStoreOf({ storeId, tables, commit, now, news, outputs, space, closeDatabase }: OpenedSqlite): CallStore {
  const { sessions, log, openCalls, records, asks } = tables;
  // SQLite does not write a row that does not change.
  const probe = statement(
    tables.db,
    "INSERT INTO meta (key, value) VALUES ('probe', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
  );
  let probes = 0;
  return {
    storeId,
    isShared: false,
    now,
    createSession: (session) => commit.run((step) => sessions.create(step, session)),
    getSession: (id) => readNow(() => sessions.get(id)),
    listSessions: (filter) => readNow(() => sessions.list(filter)),
    closeSession: (id) => commit.run((step) => applyCloseSession(tables, step, id)),
    openCall: (opened) => commit.run((step) => applyOpenCall(tables, step, opened)),
    openAsks: (opened) => commit.run((step) => applyOpenAsks(tables, step, opened)),
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
    renewLeases: async (owner, leaseMs) => openCalls.renew(owner, now() + leaseMs),
    releaseCalls: async (owner) => openCalls.release(owner, now()),
    orphans: () => readNow(() => listOrphans(tables, now())),
    // No other replica shares this store.
    announceUnclaimed: async () => {},
    onUnclaimed: () => () => {},
    sweep: createSqliteSweep({ tables, commit, outputs, now }),
    getCall: (sessionId, callId) => readNow(() => records.get(sessionId, callId)),
    getCallWithAsks: (ref) =>
      readNow(() => {
        const record = records.get(ref.sessionId, ref.callId);
        return record && { record, asks: asks.ofCall(ref) };
      }),
    getCallOfAsk: (sessionId, askId) =>
      readNow(() => {
        const ask = asks.get(sessionId, askId);
        const record = ask && records.get(sessionId, ask.call.callId);
        return record && { record, asks: asks.ofCall(record.ref) };
      }),
    findAssigned: (assignment) => readNow(() => records.findAssigned(assignment)),
    repeatsOf: (sessionId, requestDigest) => readNow(() => repeatsOfNext(tables, sessionId, requestDigest)),
    listCalls: (filter) => readNow(() => records.list(filter)),
    getRead: (root, path) => readNow(() => sessions.getRead(root, path)),
    recordRead: (root, path, sha256) => commit.run(() => sessions.recordRead(root, path, sha256)),
    getState: ({ sessionId }, name) => readNow(() => sessions.getState(sessionId, name)),
    setState: ({ sessionId }, name, value) => commit.run(() => sessions.setState(sessionId, name, value)),
    bytesOf: log.bytesOf,
    readLog: (sessionId, afterSeq, maxBytes) => readNow(() => log.read(sessionId, afterSeq, maxBytes)),
    onNews: news.subscribe,
    async ready() {
      space.measure();
      try {
        await commit.probe((step) => probe.run(`${step.now}.${probes++}`));
        return !space.isLow() && !commit.hasFailed();
      } catch {
        return false;
      }
    },
    // No other replica shares this store.
    agrees: async () => true,
    async close() {
      await commit.run(() => {});
      await outputs.close();
      await space.close();
      closeDatabase();
    },
  };
}

function permissionStoreOf({ tables, commit, now }: OpenedSqlite): PermissionStore {
  const { sessions, asks, grants, audit } = tables;
  return {
    getAsk: (sessionId, id) => readNow(() => asks.get(sessionId, id)),
    findAsk: (id) => readNow(() => asks.find(id)),
    asksOf: (call) => readNow(() => asks.ofCall(call)),
    openAsks: (filter) => readNow(() => asks.listOpen(filter)),
    countOpenAsks: () => readNow(asks.countAll),
    expiredAsks: (limit) => readNow(() => asks.expired(now(), limit)),
    settle: (settlement) => commit.run((step) => applySettlement(tables, step, settlement)),
    grantsFor: (tree) => readNow(() => ({ grants: grants.serving(now(), tree), ...sessions.versions(tree.root) })),
    adoptGrant: (root, id) => commit.run((step) => grants.adopt(step, root, id)),
    getGrant: (id) => readNow(() => grants.get(id)),
    listGrants: (filter) => readNow(() => grants.list(now(), filter)),
    revokeGrant: (id, decisions) => commit.run((step) => grants.revoke(step, id, decisions)),
    listDecisions: (page) => readNow(() => audit.list(page)),
    listAudits: (page) => readNow(() => audit.gone(page)),
  };
}
