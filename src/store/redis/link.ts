import type { Logger } from "../../core/logger.ts";
import { eachNode, whenReady } from "./client.ts";
import { type Connection, createConnection, encodeStep, evaluateScript, sendCommand } from "./connection.ts";
import { isVerified, verifyContents } from "./contents.ts";
import type { Keys } from "./keys.ts";
import { type Reply, replyList } from "./reply.ts";
import { attemptCommand, noteRefusal, patienceMs } from "./retry.ts";
import type { ReadName, StepName } from "./scripts.ts";
import { checkServers } from "./server-check.ts";
import type { RedisAddress } from "./url.ts";

/** Access to Redis: every command goes through it, and only while the contents are known to be those of `storeId`. */
export interface Link {
  readonly storeId: string;
  /** Ms since the epoch by Redis' clock, estimated: no guard depends on it. */
  now(): number;
  /** Sends one repeatable command. */
  command(name: string, ...args: (string | number | Buffer)[]): Promise<Reply>;
  /** Runs a script that writes; sent again if the connection is lost before the reply. */
  run(name: StepName, keys: StepKeys, values?: object, bytes?: StepBytes): Promise<Reply>;
  /** Runs a script that only reads. */
  read(name: ReadName, keys: readonly string[], ...args: (string | number)[]): Promise<Reply>;
  /** Reads hashes of one slot as one snapshot: the fields and values of each. */
  hashes(...keys: string[]): Promise<Reply[]>;
  /** Registers a callback for a lost connection, with which the last writes may be lost. */
  onBreak(forget: () => void): void;
  /** Registers a callback for lost contents. */
  onLost(forget: () => void): void;
  ready(): Promise<boolean>;
  close(): Promise<void>;
}

/** The keys of a step, by their names in its script. */
export type StepKeys = Record<string, string>;
/** The bytes of a step, by their names in its script; undefined ones are omitted. */
export type StepBytes = Record<string, Uint8Array | undefined>;

/** Connects, checks the configuration of the servers, and agrees on the store id with the other replicas. */
export async function openLink(options: {
  address: RedisAddress;
  keys: Keys;
  /** Values that every step gets. */
  defaults: object;
  clock: (() => number) | undefined;
  log: Logger;
}): Promise<Link> {
  const connection = createConnection(options);
  const stopChecking = watchConnection(connection);
  try {
    await whenReady(connection.client, 10_000);
    await checkServers(connection.client);
    await verifyContents(connection);
  } catch (error) {
    stopChecking();
    connection.client.disconnect();
    throw error;
  }
  return linkOver(connection, { ...options, stopChecking });
}

/** Counts lost connections, and verifies the contents after each one and at intervals; returns the function that ends the intervals. */
function watchConnection(connection: Connection): () => void {
  const { client, log, breakListeners } = connection;
  eachNode(client, (node) => {
    node.on("close", () => {
      connection.losses += 1;
      for (const forget of breakListeners) forget();
    });
    node.on("ready", () => {
      // Before the first verification other nodes are not connected yet; commands to those would wait 100 ms.
      if (connection.storeId !== "") void verifyContents(connection).catch(() => {});
    });
  });
  // Finds changes without an event: a replaced node, clock drift.
  const check = setInterval(() => {
    if (client.status === "ready")
      void verifyContents(connection).catch((error: unknown) => log.warn("Redis does not answer", { error }));
  }, checkMs);
  check.unref();
  return () => clearInterval(check);
}

function linkOver(
  connection: Connection,
  options: { defaults: object; clock: (() => number) | undefined; stopChecking: () => void },
): Link {
  const { client } = connection;
  const { defaults, clock, stopChecking } = options;

  const read: Link["read"] = (name, names, ...args) =>
    attemptCommand(connection, () => evaluateScript(connection, name, [names.length, ...names, ...args]));

  return {
    get storeId() {
      return connection.storeId;
    },
    now: () => clock?.() ?? Math.floor(performance.now() + connection.clockOffsetMs),
    command: (name, ...args) => attemptCommand(connection, () => sendCommand(connection, name, ...args)),
    run(name, keys, values = {}, bytes = {}) {
      const args = encodeStep(keys, { ...defaults, ...values, ...(clock && { clock: clock() }) }, bytes);
      const patience = stepsOfRunningCalls.has(name) ? runningPatienceMs : patienceMs;
      return attemptCommand(connection, () => evaluateScript(connection, name, args), patience);
    },
    read,
    hashes: async (...hashKeys) => replyList(await read("read_hashes", hashKeys)),
    onBreak: (forget) => void connection.breakListeners.push(forget),
    onLost: (forget) => void connection.lossListeners.push(forget),
    async ready() {
      if (connection.isClosed || client.status !== "ready") return false;
      const slow = new Promise<boolean>((resolve) => setTimeout(resolve, 1_000, false).unref());
      const found = probe(connection).catch(() => false);
      return Promise.race([found, slow]);
    },
    async close() {
      connection.isClosed = true;
      stopChecking();
      await client.quit().catch(() => client.disconnect());
    },
  };
}

/** Returns true if the contents are verified and a write succeeds, which a full Redis refuses. */
async function probe(connection: Connection): Promise<boolean> {
  await verifyContents(connection);
  await sendCommand(connection, "set", connection.keys.probe, `${performance.now()}`, "PX", 60_000).catch(
    (error: unknown) => {
      noteRefusal(connection, error);
      throw error;
    },
  );
  if (connection.fullness.succeeded()) connection.log.warn("Redis has memory again: new calls are accepted");
  return isVerified(connection);
}

// A short outage must not end running calls. The reply of an operation is remembered for longer than this.
const stepsOfRunningCalls: ReadonlySet<StepName> = new Set([
  "append_output",
  "finish_call",
  "open_asks",
  "record_events",
  "renew_leases",
  "start_call",
]);
const runningPatienceMs = 10_000;
const checkMs = 5_000;
