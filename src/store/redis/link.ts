import { Redis } from "ioredis";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { StoreSafety } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { within } from "../../core/within.ts";
import { StoreUnusable } from "../errors.ts";
import { type Client, connectRedis, eachNode, leaveRedis, masters, quitRedis, whenReady } from "./client.ts";
import {
  adoptClock,
  agreeOnClock,
  behindAt,
  confirmedJump,
  isAlone,
  isClockRefusal,
  storeTime,
  timingOf,
} from "./clock.ts";
import { type Confirmations, createConfirmations } from "./confirmations.ts";
import {
  type Argument,
  type Connection,
  createConnection,
  encodeStep,
  evaluateScript,
  sendCommand,
} from "./connection.ts";
import {
  agreeOnFormat,
  checkHistory,
  failedOver,
  isVerified,
  raiseCounter,
  recallCounter,
  verifyContents,
} from "./contents.ts";
import { type Copies, type CopySettings, createCopies } from "./copies.ts";
import { generationOf, noteAcknowledged, withdrawReplica } from "./histories.ts";
import { type Keys, shardOfSlot, slotOf } from "./keys.ts";
import { inPortions, type Reply, replyList } from "./reply.ts";
import { type ReadName, type StepName, scriptTraits } from "./scripts.ts";
import type { RedisAddress } from "./url.ts";

/** Access to Redis: every command goes through it, and only while the contents are known to be those of `storeId`. */
export interface Link {
  readonly storeId: string;
  /** Returns the generation of the shard of a session tree: another one means that acknowledged work of it may be lost. */
  generationOf(root: string): number;
  /** See `StoreMembership.verifyIds`. */
  verifyIds(root?: string): Promise<void>;
  /** Ms since the epoch by the time of the store, estimated: no guard depends on it. */
  now(): number;
  /** Sends one repeatable command. Copies may still lack what it wrote. */
  command(name: string, ...args: (string | number | Buffer)[]): Promise<Reply>;
  /** Sends one repeatable command that writes; resolves like a step, once enough copies have it. The key comes first. */
  write(name: string, key: string, ...args: (string | number | Buffer)[]): Promise<Reply>;
  /** Runs a script that writes; sent again if the connection is lost before the reply. */
  run(name: StepName, keys: StepKeys, values?: object, bytes?: StepBytes): Promise<Reply>;
  /** Runs a script that only reads. */
  read(name: ReadName, keys: readonly string[], ...args: (string | number)[]): Promise<Reply>;
  /** Groups these, each with keys of one slot, for scripts that only read: single ones in a cluster, otherwise many. */
  groups<T>(all: readonly T[]): T[][];
  /** Reads hashes of one slot as one snapshot: the fields and values of each. */
  hashes(...keys: string[]): Promise<Reply[]>;
  /** Registers a callback for a lost connection, with which the last writes may be lost. */
  onBreak(forget: () => void): void;
  /** Registers a callback for lost contents. */
  onLost(forget: () => void): void;
  /** Returns true if a step is acknowledged only once enough copies have what it wrote. */
  isStrict(): boolean;
  /** Returns the jump of a clock that an earlier start found and that is still held; 0 if there is none. */
  confirmedJump(): number;
  /** Returns how far the time of the store is behind the clock of the server of a session tree, in ms. */
  behindAt(root: string): number;
  /** Returns the time at which the store was found to be restored last; 0: never. Grants that were saved before are suspended. */
  restored(): number;
  /** Returns true if no other replica runs. Takes some seconds. */
  isAlone(): Promise<boolean>;
  /** Takes the clock of Redis as the time of the store. */
  adoptClock(): Promise<void>;
  ready(): Promise<boolean>;
  safety(): StoreSafety;
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
  replica?: string;
  historyFile?: string | undefined;
  counterFile?: string | undefined;
  copies?: CopySettings;
}): Promise<Link> {
  const { address, keys, log } = options;
  const connection = createConnection(options);
  const copies = createCopies(connection, options.copies ?? { strict: false });
  const confirmations = createConfirmations({
    keys,
    connect: () => connectRedis(address, "commands", log),
    required: () => copies.safety().required,
    observe(found) {
      checkHistory(connection, found);
      copies.observe(found);
    },
    noteConfirmed: (found) => noteAcknowledged(connection, found),
  });
  const stopChecking = watchConnection(connection, copies);
  try {
    await whenReady(connection.client, 10_000);
    await checkServers(connection.client);
    await agreeOnFormat(connection);
    await copies.check();
    recallCounter(connection);
    await verifyContents(connection);
  } catch (error) {
    stopChecking();
    leaveRedis(connection.client);
    throw error;
  }
  return linkOver(connection, { ...options, safety: copies.safety, confirmations, stopChecking });
}

/** Counts lost connections, and verifies the contents after each one and at intervals; returns the function that ends the intervals. */
function watchConnection(connection: Connection, copies: Copies): () => void {
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
  const count = setInterval(() => {
    if (isVerified(connection))
      void copies.check().catch((error: unknown) => log.warn("the copies of Redis cannot be counted", { error }));
  }, checkMs);
  for (const timer of [check, count]) timer.unref();
  return () => [check, count].forEach(clearInterval);
}

function linkOver(
  connection: Connection,
  options: {
    defaults: object;
    clock: (() => number) | undefined;
    safety: () => StoreSafety;
    confirmations: Confirmations;
    stopChecking: () => void;
  },
): Link {
  const { client } = connection;
  const { defaults, clock, safety, confirmations, stopChecking } = options;
  const isStrict = () => safety().required > 0;

  /** Sends a command or script. If copies count, waits until enough of them have what the server of the key wrote or read for it. */
  async function confirmed(key: string, send: () => Promise<Reply>): Promise<Reply> {
    if (!isStrict()) return send();
    const { epoch } = connection;
    const reply = await send();
    await confirmations.confirm(key);
    if (connection.epoch !== epoch) throw failedOver();
    return reply;
  }

  function evaluate(name: StepName | ReadName, key: string, args: Argument[]): Promise<Reply> {
    const send = () => evaluateScript(connection, name, args);
    return scriptTraits[name].isUnconfirmed ? send() : confirmed(key, send);
  }

  const read: Link["read"] = (name, names, ...args) =>
    attemptCommand(connection, () => evaluate(name, names[0] ?? "", [names.length, ...names, ...args]));

  const raise = () =>
    raiseCounter(connection, confirmed).catch((error: unknown) =>
      connection.log.debug("the counter of Redis is not raised now", { error }),
    );
  if (connection.replica !== undefined) void raise();
  const raising = setInterval(() => {
    if (connection.replica !== undefined && isVerified(connection)) void raise();
  }, checkMs).unref();

  return {
    get storeId() {
      return connection.storeId;
    },
    generationOf: (root) => generationOf(connection, root),
    async verifyIds(root) {
      const key = root === undefined ? connection.keys.storeId(0) : connection.keys.tree(root).tree;
      const verify = async () => {
        // A check that is under way may have read the ids before they changed.
        await connection.verifying?.catch(() => {});
        await verifyContents(connection);
        return null;
      };
      // A master that was cut off has former ids. Its copies do not confirm them.
      await attemptCommand(connection, () => confirmed(key, verify));
    },
    now: () => clock?.() ?? storeTime(connection),
    command: (name, ...args) => attemptCommand(connection, () => sendCommand(connection, name, ...args)),
    write: (name, key, ...args) =>
      attemptCommand(connection, () => confirmed(key, () => sendCommand(connection, name, key, ...args))),
    run(name, keys, values = {}, bytes = {}) {
      const patience = scriptTraits[name].isOfRunningCall ? runningPatienceMs : patienceMs;
      const [key = ""] = Object.values(keys);
      const step = () => {
        const timing = clock ? { clock: clock() } : timingOf(connection, key);
        const history = connection.generations[shardOfSlot(slotOf(key))] ?? 0;
        return evaluate(name, key, encodeStep(keys, { ...defaults, ...values, ...timing, history }, bytes));
      };
      return attemptCommand(connection, step, patience);
    },
    read,
    groups: (all) => inPortions(all, client instanceof Redis ? maxGroup : 1),
    hashes: async (...hashKeys) => replyList(await read("read_hashes", hashKeys)),
    onBreak: (forget) => void connection.breakListeners.push(forget),
    onLost: (forget) => void connection.lossListeners.push(forget),
    isStrict,
    confirmedJump: () => confirmedJump(connection),
    behindAt: (root) => behindAt(connection, connection.keys.tree(root).tree),
    restored: () => connection.counter.restored,
    isAlone: () => isAlone(connection),
    adoptClock: () => adoptClock(connection),
    safety,
    async ready() {
      if (connection.isClosed || client.status !== "ready") return false;
      if (safety().copies < safety().required) return false;
      const found = probe(connection).catch(() => false);
      return within(1_000, found, () => false);
    },
    async close() {
      connection.isClosed = true;
      stopChecking();
      clearInterval(raising);
      confirmations.close();
      await withdrawReplica(connection);
      await quitRedis(client);
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

/** Time for which a step of a running call is retried. */
const runningPatienceMs = 10_000;
const checkMs = 5_000;

/** Maximum size of a group, so that one script does not delay others for long. */
const maxGroup = 256;

/** Default time for which a command is retried. */
const patienceMs = 1_000;

/** Sends a repeatable command, twice at least and until the time is over; refuses with STORE_UNAVAILABLE after that. */
export async function attemptCommand(
  connection: Connection,
  work: () => Promise<Reply>,
  patience = patienceMs,
): Promise<Reply> {
  const deadline = performance.now() + patience;
  const { raises } = connection;
  for (let failures = 0, before = connection.storeId; ; failures++) {
    if (connection.isClosed) throw unavailable("it was closed");
    await untilVerified(connection, Math.max(deadline, performance.now() + patienceMs));
    if (failures > 0 && before !== connection.storeId) throw unavailable("it lost its contents");
    // Who asked has compared the store id of before.
    if (raises !== connection.raises) throw unavailable("a failover may have lost a part of its contents");
    before = connection.storeId;
    try {
      return await work();
    } catch (error) {
      if (isDefect(error)) throw error;
      noteRefusal(connection, error);
      if (isClockRefusal(error)) await agreeOnClock(connection).catch(() => {});
      if (failures > 0 && performance.now() >= deadline) throw unavailable(error);
      await pause();
    }
  }
}

/** Waits for a lost connection to be ready and verified again. */
async function untilVerified(connection: Connection, deadline: number): Promise<void> {
  if (isVerified(connection)) return;
  while (!connection.isClosed && performance.now() < deadline) {
    if (connection.client.status === "ready")
      await within(
        verifyMs,
        verifyContents(connection).catch(() => {}),
        () => undefined,
      );
    if (isVerified(connection)) return;
    await pause();
  }
  throw unavailable("there is no connection to Redis");
}

/** Waits before the next attempt. */
const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
/** Time for a verification, which takes as long as failovers follow each other. Replicas agree on one in up to 5 s. */
const verifyMs = 10_000;

/** Returns true for a defect in a script or command, which a retry cannot cure. */
const isDefect = (error: unknown) =>
  error instanceof Error && error.name === "ReplyError" && /^(ERR|WRONGTYPE)/.test(error.message);

/** Logs the refusal of a write by a Redis that has reached maxmemory. */
function noteRefusal({ fullness }: Connection, error: unknown): void {
  if (isFull(error)) fullness.failed(error);
}

/** Returns true for the refusal of a write by a Redis that has reached maxmemory. */
const isFull = (error: unknown): error is Error => error instanceof Error && error.message.startsWith("OOM ");

/** Describes a failure, without the script and line in which it occurred. */
function causeOf(cause: unknown): string {
  if (isFull(cause)) return "Redis has reached its maxmemory";
  return (cause instanceof Error ? cause.message : String(cause)).replace(/ script: [0-9a-f]+, on .*$/s, "");
}

/** Refuses with STORE_UNAVAILABLE after a failure of Redis or of the connection. */
function unavailable(cause: unknown): RequestError {
  const fact = causeOf(cause);
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    `the store is not available (${fact}): try again with the same ids`,
    {},
    { cause },
  );
}

/** Refuses a Redis that is too old, that may evict keys, or of whose cluster the URL names one node. */
async function checkServers(client: Client): Promise<void> {
  for (const node of masters(client)) {
    const facts = `${await node.info("server")}${await node.info("memory")}`;
    const fact = (name: string) => new RegExp(`^${name}:(.*?)\\r?$`, "m").exec(facts)?.[1] ?? "";
    const where = node.options.path ?? `${node.options.host}:${node.options.port}`;
    const version = fact("redis_version");
    if (Number.parseInt(version, 10) < 7) {
      throw new StoreUnusable(
        `the Redis at ${where} has version ${version}: the store needs 7.0 or later; name another Redis in the URL`,
      );
    }
    if (client instanceof Redis && fact("redis_mode") === "cluster") {
      throw new StoreUnusable(
        `the Redis at ${where} runs in cluster mode, where the URL names a single one: write redis+cluster://host:port (rediss+cluster:// for TLS), or start it with cluster-enabled no`,
      );
    }
    const policy = fact("maxmemory_policy");
    if (policy !== "noeviction") {
      throw new StoreUnusable(
        `the Redis at ${where} has maxmemory-policy ${policy}, so it may evict open calls when memory is short: run CONFIG SET maxmemory-policy noeviction and set the same in its configuration`,
      );
    }
  }
}
