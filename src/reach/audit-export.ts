import { open } from "node:fs/promises";
import { toJsonString } from "@bufbuild/protobuf";
import { type AuditEntry, AuditEntrySchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Logger } from "../core/logger.ts";
import type { ExportCursor, ExportStore } from "./ports.ts";
import { answerOf, failureOf, type ProviderTarget, post } from "./post.ts";

/** Sends the audit to its receivers, each chain in order and each record at least once. */
export type AuditExport = ReturnType<typeof createAuditExport>;

/** Counters of a receiver. */
export interface ExportCounts {
  /** Records that it accepted from this replica. */
  exported: number;
  /** Attempts that failed. */
  failed: number;
  /** Records that retention removed before it accepted them, in the whole store. */
  lost: number;
  /** Age of the oldest record that waits, in ms; 0 if none does, or another replica exports. */
  lagMs: number;
}

/** A place to which lines are written. Resolves to a failure, with what the operator can do. */
export type AuditReceiver = (lines: string, signal: AbortSignal) => Promise<ReceiverFailure | undefined>;

interface ReceiverFailure {
  readonly why: string;
  readonly next: string;
}

/** A batch takes no further record once it has this size. */
const maxBatchBytes = 1_048_576;
/** Records of one chain in a batch, and chains that are read at a time. */
const maxOfChain = 100;
const chainsAtOnce = 5;
const attemptMs = 10_000;
/** Longer than an attempt, so that two replicas never send at a time. */
const leaseMs = 30_000;
/** Pauses after failed attempts; the last one repeats. A receiver that refuses is asked again, since no record may be left out. */
const pausesMs = [1_000, 2_000, 10_000, 30_000, 60_000];
const lossesEveryMs = 60_000;

interface ReceiverState {
  readonly receive: AuditReceiver;
  readonly counts: ExportCounts;
  failures: number;
  nextAt: number;
  round: Promise<void> | undefined;
}

/** Records to send, with the cursors behind them. */
interface Batch {
  readonly lines: string[];
  readonly cursors: ExportCursor[];
  readonly ended: string[];
  readonly readAt: number;
  bytes: number;
  oldest: number;
}

/** Creates the export of a replica. A round sends one batch after the other, so a receiver that stalls holds one of them. */
export function createAuditExport(options: {
  store: ExportStore;
  listDecisions(page: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]>;
  receivers: ReadonlyMap<string, AuditReceiver>;
  replicaId: string;
  /** Time of the store. */
  now: () => number;
  log: Logger;
}) {
  const { store, listDecisions, replicaId: owner, now, log } = options;
  const closing = new AbortController();
  const states = new Map([...options.receivers].map(([name, receive]) => [name, stateOf(receive)] as const));
  let countsLossesAt = 0;

  /** Reads what follows a cursor. A chain that the store has lost and written again is read from its beginning. */
  async function readAfter({ root, seq, hash }: ExportCursor): Promise<AuditEntry[]> {
    const entries = await listDecisions({ root, afterSeq: Math.max(0, seq - 1), limit: maxOfChain + 1 });
    if (seq === 0) return entries;
    const [first] = entries;
    const isAtCursor = Number(first?.seq) === seq;
    if (isAtCursor ? first?.hash === hash : Number(first?.seq) === seq + 1 ? first?.previous === hash : first)
      return isAtCursor ? entries.slice(1) : entries;
    const again = await listDecisions({ root, afterSeq: 0, limit: maxOfChain });
    if (again.length > 0)
      log.error("the store has lost records of the audit that were exported, and their chain is exported again", {
        reason: `record ${seq} of ${root}`,
      });
    return again;
  }

  async function gather(receiver: string): Promise<Batch> {
    const batch: Batch = { lines: [], cursors: [], ended: [], readAt: now(), bytes: 0, oldest: 0 };
    for (let skip = 0; batch.bytes < maxBatchBytes; skip += chainsAtOnce) {
      const chains = await store.pendingExports(receiver, { skip, limit: chainsAtOnce });
      const found = await Promise.all(chains.map(readAfter));
      for (const [index, entries] of found.entries()) add(batch, chains[index]?.root ?? "", entries);
      if (chains.length < chainsAtOnce) break;
    }
    return batch;
  }

  /** Sends what is pending. Returns when nothing is, after a failure, and once another replica holds the lease. */
  async function run(receiver: string, state: ReceiverState): Promise<void> {
    while (!closing.signal.aborted && now() >= state.nextAt) {
      if (!(await store.claimExport(receiver, owner, leaseMs))) {
        state.counts.lagMs = 0;
        return;
      }
      const { lines, cursors, ended, readAt, oldest } = await gather(receiver);
      state.counts.lagMs = lines.length === 0 ? 0 : Math.max(0, now() - oldest);
      if (lines.length > 0) {
        const signal = AbortSignal.any([closing.signal, AbortSignal.timeout(attemptMs)]);
        const failure = await state.receive(lines.join(""), signal);
        if (closing.signal.aborted) return;
        if (failure !== undefined) {
          fail(receiver, state, failure);
          return;
        }
        state.failures = 0;
      }
      if (lines.length + ended.length > 0 && !(await store.noteExport({ receiver, owner, cursors, ended, readAt })))
        return;
      state.counts.exported += lines.length;
      if (lines.length === 0) return;
    }
  }

  function fail(receiver: string, state: ReceiverState, { why, next }: ReceiverFailure): void {
    state.counts.failed += 1;
    state.nextAt = now() + (pausesMs[Math.min(state.failures, pausesMs.length - 1)] ?? 0);
    state.failures += 1;
    log.warn(`the audit was not exported to ${receiver} and waits: ${why}. Next: ${next}`, { count: state.failures });
  }

  async function countLosses(): Promise<void> {
    if (now() < countsLossesAt) return;
    countsLossesAt = now() + lossesEveryMs;
    const losses = await store.exportLosses();
    for (const [receiver, { counts }] of states) {
      const lost = losses.get(receiver) ?? 0;
      if (lost > counts.lost)
        log.error(
          `${lost} records of the audit were removed at audit_max_days before ${receiver} accepted them. Next: correct its address or file, or raise audit_max_days`,
        );
      counts.lost = lost;
    }
  }

  return {
    /** Begins a round for each receiver that has none; the service calls it once a second. */
    tick(): void {
      for (const [receiver, state] of states) {
        // Both end before the next round: two that run would send the same records twice.
        state.round ??= Promise.allSettled([run(receiver, state), countLosses()]).then((ends) => {
          state.round = undefined;
          for (const end of ends)
            if (end.status === "rejected") fail(receiver, state, { why: String(end.reason), next: "check the store" });
        });
      }
    },
    /** Counts by receiver. */
    counts: (): ReadonlyMap<string, ExportCounts> =>
      new Map([...states].map(([name, { counts }]) => [name, counts] as const)),
    /** Aborts what is being sent, and lets another replica go on at once. */
    async close(): Promise<void> {
      closing.abort();
      for (const [receiver, { round }] of states) {
        await round;
        await store.claimExport(receiver, owner, 0).catch(() => false);
      }
    },
  };
}

function stateOf(receive: AuditReceiver): ReceiverState {
  return { receive, counts: { exported: 0, failed: 0, lost: 0, lagMs: 0 }, failures: 0, nextAt: 0, round: undefined };
}

/** Adds the records of a chain to a batch, as far as there is space. */
function add(batch: Batch, root: string, entries: readonly AuditEntry[]): void {
  if (entries.length === 0) batch.ended.push(root);
  let last: AuditEntry | undefined;
  for (const entry of entries) {
    if (batch.bytes >= maxBatchBytes) break;
    const line = `${toJsonString(AuditEntrySchema, entry)}\n`;
    batch.lines.push(line);
    batch.bytes += Buffer.byteLength(line);
    batch.oldest = Math.min(batch.oldest || Number(entry.time), Number(entry.time));
    last = entry;
  }
  if (last) batch.cursors.push({ root, seq: Number(last.seq), hash: last.hash });
}

/** Appends to a file and syncs it. A line that a kill or a full disk cut is removed first, so that the file has whole lines only. */
export function createFileReceiver(path: string): AuditReceiver {
  return async (lines) => {
    try {
      await using file = await open(path, "a+", 0o600);
      const { size } = await file.stat();
      const whole = await endOfLines(file, size);
      if (whole < size) await file.truncate(whole);
      await file.writeFile(lines);
      await file.sync();
      return undefined;
    } catch (error) {
      const code = error instanceof Error && "code" in error ? String(error.code) : String(error);
      return { why: `${path}: ${code}`, next: "make the file writable for the service, and check the space there" };
    }
  };
}

/** Returns the length up to the last line end. */
async function endOfLines(file: Awaited<ReturnType<typeof open>>, size: number): Promise<number> {
  const chunk = Buffer.alloc(65_536);
  for (let end = size; end > 0; ) {
    const from = Math.max(0, end - chunk.length);
    const { bytesRead } = await file.read(chunk, 0, end - from, from);
    const at = chunk.subarray(0, bytesRead).lastIndexOf(10);
    if (at >= 0) return from + at + 1;
    end = from;
  }
  return 0;
}

/** Posts JSON lines. Every answer but 2xx is a failure. */
export function createHttpReceiver(target: ProviderTarget, token: string): AuditReceiver {
  const headers = {
    "content-type": "application/x-ndjson",
    ...(token !== "" && { authorization: `Bearer ${token}` }),
  };
  return async (body, signal) => {
    const answer = await post(target, { headers, body, signal, maxBytes: Number.POSITIVE_INFINITY }).then(
      answerOf,
      failureOf,
    );
    if (answer.answer === "accepted") return undefined;
    return { why: answer.why, next: answer.next || "check the address and the log of the receiver" };
  };
}
