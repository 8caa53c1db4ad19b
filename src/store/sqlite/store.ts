import { join } from "node:path";
import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore, Store } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { createSqliteAsks } from "./asks.ts";
import { createSqliteAudit } from "./audit.ts";
import { createSqliteCallRecords } from "./call-records.ts";
import { createSqliteCalls } from "./calls.ts";
import { createCommit, readNow } from "./commit.ts";
import { openDatabase, statement } from "./database.ts";
import { createSqliteDoorbell } from "./doorbell.ts";
import { createSqliteGrants } from "./grants.ts";
import { createSqliteLog, type LogLimits } from "./log.ts";
import { createOpenCallTable } from "./open-calls.ts";
import { createSqliteOutputs } from "./outputs.ts";
import { createSqliteSessions } from "./sessions.ts";
import { createSqliteSettle } from "./settle.ts";
import { createSqliteSweep } from "./sweep.ts";

/**
 * Opens the store in a data directory, which this process then has for itself. Its clock is this machine's. Reads see what
 * was promised and nothing else; each write is one transition, named as the file or function that holds it.
 */
export async function openSqliteStore(options: {
  directory: string;
  clock?: () => number;
  log?: Logger;
  limits?: LogLimits;
}): Promise<Store> {
  const {
    directory,
    log: logger,
    clock: now = Date.now,
    limits = { events: 100_000, bytes: 16 * 1024 * 1024 },
  } = options;
  const { db, storeId, close } = openDatabase(directory);
  const doorbell = createSqliteDoorbell();
  const commit = createCommit({ db, now, ring: doorbell.ring, log: logger });
  const sessions = createSqliteSessions(db);
  const log = createSqliteLog({ db, sessions, limits });
  const openCalls = createOpenCallTable(db, now());
  const records = createSqliteCallRecords({ db, sessions, openCalls, now });
  const asks = createSqliteAsks({ db, log, records });
  const audit = createSqliteAudit(db, sessions);
  const grants = createSqliteGrants({ db, sessions, log, audit });
  const calls = createSqliteCalls({ db, sessions, log, openCalls, records, asks, grants, audit });
  const settle = createSqliteSettle({ sessions, openCalls, calls, asks, grants, audit });
  const outputs = createSqliteOutputs(join(directory, "output"));
  const sweep = createSqliteSweep({ db, commit, sessions, log, outputs, now });
  const probe = statement(db, "UPDATE meta SET value = value WHERE key = 'store_id'");

  const callStore: CallStore = {
    storeId,
    isShared: false,
    now,
    createSession: (session) => commit.run((step) => sessions.create(step, session)),
    getSession: (id) => readNow(() => sessions.get(id)),
    listSessions: (filter) => readNow(() => sessions.list(filter)),
    closeSession: (id) => commit.run((step) => calls.closeSession(step, id)),
    openCall: (call) => commit.run((step) => calls.openCall(step, call)),
    claimCall: (...claim) => commit.run((step) => calls.claimCall(step, ...claim)),
    openAsks: (opened) => commit.run((step) => calls.openAsks(step, opened)),
    prepareCall: (prepared) => commit.run((step) => calls.prepareCall(step, prepared)),
    noteCall: (noted) => commit.run((step) => calls.noteCall(step, noted)),
    startCall: (started) => commit.run((step) => calls.startCall(step, started)),
    recordEvents: (fence, events) => commit.run((step) => calls.recordEvents(step, fence, events)),
    finishCall: (finished) => commit.run((step) => calls.finishCall(step, finished)),
    requestCancel: (ref, message) => commit.run((step) => calls.requestCancel(step, ref, message)),
    renewLeases: async (owner, leaseMs) => openCalls.renew(owner, now() + leaseMs),
    releaseCalls: async (owner) => openCalls.release(owner, now()),
    orphans: (limit) => readNow(() => calls.orphans(now(), limit)),
    sweep,
    getCall: (sessionId, callId) => readNow(() => records.get(sessionId, callId)),
    getCallWithAsks: (ref) =>
      readNow(() => {
        const record = records.get(ref.sessionId, ref.callId);
        return record && { record, asks: asks.ofCall(ref) };
      }),
    repeatsOf: (sessionId, requestDigest) => readNow(() => calls.repeatsOf(sessionId, requestDigest)),
    listCalls: (filter) => readNow(() => records.list(filter)),
    getRead: (root, path) => readNow(() => sessions.getRead(root, path)),
    recordRead: (root, path, sha256) => commit.run(() => sessions.recordRead(root, path, sha256)),
    getState: ({ sessionId }, name) => readNow(() => sessions.getState(sessionId, name)),
    setState: ({ sessionId }, name, value) => commit.run(() => sessions.setState(sessionId, name, value)),
    bytesOf: log.bytesOf,
    readLog: (sessionId, afterSeq, maxBytes) => readNow(() => log.read(sessionId, afterSeq, maxBytes)),
    onNews: doorbell.listen,
    ready: () =>
      commit
        .run(() => probe.run())
        .then(
          () => true,
          () => false,
        ),
    // There is no other replica.
    agrees: async () => true,
    async close() {
      await commit.run(() => {});
      await outputs.close();
      close();
    },
  };

  const permissionStore: PermissionStore = {
    getAsk: (sessionId, id) => readNow(() => asks.get(sessionId, id)),
    asksOf: (call) => readNow(() => asks.ofCall(call)),
    openAsks: (filter) => readNow(() => asks.listOpen(filter)),
    expiredAsks: (limit) => readNow(() => asks.expired(now(), limit)),
    settle: (settlement) => commit.run((step) => settle(step, settlement)),
    grantsFor: (tree) => readNow(() => ({ grants: grants.serving(now(), tree), ...sessions.versions(tree.root) })),
    adoptGrant: (root, id) => commit.run((step) => grants.adopt(step, root, id)),
    getGrant: (id) => readNow(() => grants.get(id)),
    listGrants: (filter) => readNow(() => grants.list(now(), filter)),
    revokeGrant: (id, decisions) => commit.run((step) => grants.revoke(step, id, decisions)),
    listDecisions: (page) => readNow(() => audit.list(page)),
    listAudits: (page) => readNow(() => audit.gone(page)),
  };

  return { calls: callStore, permissions: permissionStore, outputs };
}
