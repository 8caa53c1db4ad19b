import { join } from "node:path";
import type { PermissionStore } from "../../approval/ports.ts";
import type { CallStore, OutputStore } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { createAsks } from "./asks.ts";
import { createAudit } from "./audit.ts";
import { createCallRecords } from "./call-records.ts";
import { createCalls } from "./calls.ts";
import { createCommit, read } from "./commit.ts";
import { openDatabase, statement } from "./database.ts";
import { createDoorbell } from "./doorbell.ts";
import { createGrants } from "./grants.ts";
import { createLog, type LogLimits } from "./log.ts";
import { createOpenCalls } from "./open-calls.ts";
import { createOutputs } from "./outputs.ts";
import { createSessions } from "./sessions.ts";
import { createSettle } from "./settle.ts";
import { createSweep } from "./sweep.ts";

/** The embedded store: `calls.close()` closes all of it. */
export interface SqliteStore {
  calls: CallStore;
  permissions: PermissionStore;
  outputs: OutputStore;
}

/**
 * Opens the store in a data directory, which this process then has for itself. Its clock is this machine's. Reads see what
 * was promised and nothing else; each write is one transition, named as the file or function that holds it.
 */
export async function openSqliteStore(options: {
  directory: string;
  clock?: () => number;
  log?: Logger;
  limits?: LogLimits;
}): Promise<SqliteStore> {
  const {
    directory,
    log: logger,
    clock: now = Date.now,
    limits = { events: 100_000, bytes: 16 * 1024 * 1024 },
  } = options;
  const { db, storeId, close } = openDatabase(directory);
  const doorbell = createDoorbell();
  const commit = createCommit({ db, now, ring: doorbell.ring, log: logger });
  const sessions = createSessions(db);
  const log = createLog({ db, sessions, limits });
  const openCalls = createOpenCalls(db, now());
  const records = createCallRecords({ db, sessions, openCalls, now });
  const asks = createAsks({ db, log, records });
  const audit = createAudit(db, sessions);
  const grants = createGrants({ db, sessions, log, audit });
  const calls = createCalls({ db, sessions, log, openCalls, records, asks, grants, audit });
  const settle = createSettle({ sessions, openCalls, calls, asks, grants, audit });
  const outputs = createOutputs(join(directory, "output"));
  const sweep = createSweep({ db, commit, sessions, log, outputs, now });
  const probe = statement(db, "UPDATE meta SET value = value WHERE key = 'store_id'");

  const callStore: CallStore = {
    storeId,
    isShared: false,
    now,
    createSession: (session) => commit.run((step) => sessions.create(step, session)),
    getSession: (id) => read(() => sessions.get(id)),
    listSessions: (filter) => read(() => sessions.list(filter)),
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
    orphans: (limit) => read(() => calls.orphans(now(), limit)),
    sweep,
    getCall: (sessionId, callId) => read(() => records.get(sessionId, callId)),
    getCallWithAsks: (ref) =>
      read(() => {
        const record = records.get(ref.sessionId, ref.callId);
        return record && { record, asks: asks.ofCall(ref) };
      }),
    repeatsOf: (sessionId, requestDigest) => read(() => calls.repeatsOf(sessionId, requestDigest)),
    listCalls: (filter) => read(() => records.list(filter)),
    getRead: (root, path) => read(() => sessions.getRead(root, path)),
    recordRead: (root, path, sha256) => commit.run(() => sessions.recordRead(root, path, sha256)),
    getState: ({ sessionId }, name) => read(() => sessions.getState(sessionId, name)),
    setState: ({ sessionId }, name, value) => commit.run(() => sessions.setState(sessionId, name, value)),
    bytesOf: log.bytesOf,
    readLog: (sessionId, afterSeq, maxBytes) => read(() => log.read(sessionId, afterSeq, maxBytes)),
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
    getAsk: (sessionId, id) => read(() => asks.get(sessionId, id)),
    asksOf: (call) => read(() => asks.ofCall(call)),
    openAsks: (filter) => read(() => asks.listOpen(filter)),
    expiredAsks: (limit) => read(() => asks.expired(now(), limit)),
    settle: (settlement) => commit.run((step) => settle(step, settlement)),
    grantsFor: (tree) => read(() => ({ grants: grants.serving(now(), tree), ...sessions.versions(tree.root) })),
    adoptGrant: (root, id) => commit.run((step) => grants.adopt(step, root, id)),
    getGrant: (id) => read(() => grants.get(id)),
    listGrants: (filter) => read(() => grants.list(now(), filter)),
    revokeGrant: (id, decisions) => commit.run((step) => grants.revoke(step, id, decisions)),
    listDecisions: (page) => read(() => audit.list(page)),
    listAudits: (page) => read(() => audit.gone(page)),
  };

  return { calls: callStore, permissions: permissionStore, outputs };
}
