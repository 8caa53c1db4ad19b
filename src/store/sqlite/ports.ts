import type { PermissionStore, SettledCall, Settlement } from "../../approval/ports.ts";
import type { CallStore, OrphanedCall } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Logger } from "../../core/logger.ts";
import type { ExportStore, NoticeStore } from "../../reach/ports.ts";
import type { NewsListeners } from "../recent-events.ts";
import { endCallRow, raiseCallVersion, type SqliteTables, settleCallRow, startSettledCall } from "./call-statements.ts";
import type { SqliteClock } from "./clock.ts";
import { type Commit, type DatabaseHealth, type InStep, inSteps, type Step } from "./commit.ts";
import { statement } from "./database.ts";
import { type DiskSpace, sizesOf } from "./disk-space.ts";
import type { OutputFiles } from "./outputs.ts";
import { schemaVersion } from "./schema.ts";
import { createSqliteSweep } from "./sweep.ts";
import { createSqliteTransitions, repeatsOfNext } from "./transitions.ts";

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
  auditMs: number;
  auditMaxMs: number;
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
  auditMs,
  auditMaxMs,
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
    ...inSteps(commit, createSqliteTransitions(tables)),
    renewLeases: async (owner, leaseMs) => openCalls.renew(owner, now() + leaseMs),
    releaseCalls: async (owner) => openCalls.release(owner, now()),
    orphans: () => read(() => listOrphans(tables, now())),
    // No other replica shares this store.
    announceUnclaimed: async () => {},
    onUnclaimed: () => () => {},
    sweep: createSqliteSweep({ tables, commit, health, outputs, clock, log: logger, auditMs, auditMaxMs }),
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
    openRequests: (filter) => read(() => asks.listRequests(filter)),
    countOpenAsks: () => read(asks.countAll),
    countLongAsks: (time) => read(() => asks.countLong(time)),
    dueAsks: (limit) => read(() => asks.due(now(), limit, health.refusalOf)),
    ...inSteps(commit, createAskTransitions(tables)),
    grantsFor: (tree) => read(() => ({ grants: grants.serving(now(), tree), ...sessions.versions(tree.root) })),
    adoptGrant: (root, id) => commit.run((step) => grants.adopt(step, root, id)),
    takeGrant: (call, id) => commit.run((step) => grants.take(step, [id], call)),
    getGrant: (id) => read(() => grants.get(id)),
    listGrants: (filter) => read(() => grants.list(now(), filter)),
    revokeGrant: (id, decisions) => commit.run((step) => grants.revoke(step, id, decisions)),
    confirmGrant: (id, decisions) => commit.run((step) => grants.confirm(step, id, decisions)),
    recordDecisions: (root, decisions) => commit.run((step) => audit.append(step, root, decisions)),
    listDecisions: (page) => read(() => audit.list(page)),
    listAudits: (page) => read(() => audit.gone(page)),
  };
}

/** Creates the port of notices. */
export function sqliteNoticeStore({ tables, commit, health, clock: { now } }: OpenedSqlite): NoticeStore {
  const { asks, notices } = tables;
  const { read } = health;
  return {
    claimNotices: async (claim) => {
      // Looks first, so that nothing is written where nothing is due.
      const due = await read(() => notices.isDue(claim, now()));
      return due ? await commit.run((step) => notices.claim(step, claim)) : [];
    },
    noteNotice: (...noted) => commit.run(() => notices.note(...noted)),
    countNotices: () => read(notices.count),
    listNotices: () => read(notices.list),
    findAsk: (id) => read(() => asks.find(id)),
  };
}

/** Creates the port of the export of the audit. */
export function sqliteExportStore({ tables: { exports }, commit, health: { read } }: OpenedSqlite): ExportStore {
  return {
    claimExport: (...claim) => commit.run((step) => exports.claim(step, ...claim)),
    pendingExports: (...page) => read(() => exports.pending(...page)),
    noteExport: (exported) => commit.run(() => exports.note(exported)),
    exportLosses: () => read(exports.losses),
  };
}

/** Creates the transitions of asks. */
function createAskTransitions(tables: SqliteTables): InStep<Pick<PermissionStore, "settle" | "escalate">> {
  const { openCalls, asks, grants, notices, audit } = tables;
  return {
    /**
     * settle_ask: decides the race for an ask and writes every change of the winner. An answer after the deadline, and an expiry
     * before it, lose without a winner: the caller then expires the ask, or waits.
     */
    settle(step, settlement) {
      const ask = asks.state(settlement.askId);
      if (ask?.settled !== undefined) return { result: "lost", settled: ask.settled };
      const isDue = ask !== undefined && ask.expires <= step.now;
      if (ask === undefined || isDue !== settlement.expired) return { result: "lost" };
      if (!isCurrent(tables, step, settlement)) return { result: "retry" };

      for (const settled of settlement.settled) asks.settle(step, settled);
      for (const request of settlement.voted ?? []) asks.vote(step, request);
      for (const grant of settlement.grants) grants.save(step, grant);
      const unclaimed: CallRef[] = [];
      for (const { ref, part, start } of settlement.calls) {
        const call = openCalls.get(ref);
        if (call === undefined) continue;
        if (start) startSettledCall(tables, step, call, start);
        else if (part && part.state.case !== "pending") endCallRow(tables, step, call, part);
        else if (settleCallRow(tables, step, call, part)) unclaimed.push(ref);
      }
      audit.append(step, settlement.root, settlement.decisions);
      return { result: "won", ...(unclaimed.length > 0 && { unclaimed }) };
    },

    /** escalate_ask: takes the steps of an open ask that are due. */
    escalate(step, escalation) {
      const { call: ref, version, request, decisions } = escalation;
      const [call, ask] = [openCalls.get(ref), asks.state(request.id)];
      if (call === undefined || call.version !== version || ask === undefined || ask.settled !== undefined)
        return false;
      if (ask.expires <= step.now || ask.escalates === null || ask.escalates > step.now) return false;
      asks.escalate(step, request);
      for (const notice of escalation.notices) notices.open(step, notice);
      raiseCallVersion(tables, step, call);
      audit.append(step, ref.root, decisions);
      return true;
    },
  };
}

/** Compares every record that the settlement was computed from. */
function isCurrent(tables: SqliteTables, step: Step, settlement: Settlement): boolean {
  const { sessions, openCalls, asks } = tables;
  const { asksVersion } = sessions.versions(settlement.root);
  if ((settlement.asksVersion ?? asksVersion) !== asksVersion) return false;
  if (!settlement.calls.every(({ ref, version }) => openCalls.get(ref)?.version === version)) return false;
  if (!settlement.calls.every((each) => each.start === undefined || mayStart(tables, step, settlement, each)))
    return false;
  const ids = settlement.settled.map(({ permissionId }) => permissionId);
  return [...ids, ...(settlement.voted ?? []).map(({ id }) => id)].every((id) => {
    const ask = asks.state(id);
    return ask !== undefined && ask.settled === undefined;
  });
}

/** Checks that a call has no owner, was not started, and waits for no other ask than those of the settlement. */
function mayStart(
  { openCalls, asks }: SqliteTables,
  step: Step,
  { settled }: Settlement,
  { ref }: SettledCall,
): boolean {
  const call = openCalls.get(ref);
  if (call === undefined || call.started || (call.owner !== "" && call.leaseUntil > step.now)) return false;
  const answered = new Set(settled.map(({ permissionId }) => permissionId));
  return asks.openOfCall(call.ordinal).every((id) => answered.has(id));
}

/** Lists all orphaned calls, the longest orphaned first. */
function listOrphans({ openCalls }: SqliteTables, now: number): OrphanedCall[] {
  return [...openCalls.all()]
    .filter((call) => call.leaseUntil <= now)
    .map(({ ref, started, collectMs, leaseUntil, settled, remote, queued }) => ({
      ...{ ref, started, delegated: collectMs > 0, since: Math.max(leaseUntil, settled) },
      ...(remote && { remote }),
      ...(queued && { queued }),
    }))
    .sort((one, other) => one.since - other.since);
}
