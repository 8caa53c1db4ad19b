import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { connectRedis, createTogether, eachNode, masters, whenReady } from "./client.ts";
import { type Keys, shards } from "./keys.ts";
import { type Reply, replyList, text } from "./reply.ts";
import { loadScripts, type ReadName, type Script, type StepName } from "./scripts.ts";
import { checkServers } from "./server-check.ts";
import { establishStoreId } from "./store-id.ts";
import type { RedisAddress } from "./url.ts";

/** The way to Redis: everything that is sent goes through it, and only while the contents are known to be those of `storeId`. */
export interface Link {
  readonly storeId: string;
  /** Ms since the epoch by Redis' clock, estimated: it decides nothing. */
  now(): number;
  /** Sends one command that may be repeated. */
  command(name: string, ...args: (string | number | Buffer)[]): Promise<Reply>;
  /** Runs a script that writes; sent once more if the connection is lost before the answer. */
  run(name: StepName, keys: StepKeys, values?: object, bytes?: StepBytes): Promise<Reply>;
  /** Runs one that only reads. */
  read(name: ReadName, keys: readonly string[], ...args: (string | number)[]): Promise<Reply>;
  /** Reads hashes of one slot, as they are at one moment: for each its fields and values. */
  hashes(...keys: string[]): Promise<Reply[]>;
  /** Runs when a connection is lost: what was written last may be lost with it. */
  onBreak(forget: () => void): void;
  /** Runs when the store turns out to have lost its contents. */
  onLost(forget: () => void): void;
  ready(): Promise<boolean>;
  close(): Promise<void>;
}

/** The keys of a step, by the names that its script has for them. */
export type StepKeys = Record<string, string>;
/** Likewise the bytes; what is undefined is left out. */
export type StepBytes = Record<string, Uint8Array | undefined>;

/** Connects, checks that the servers are fit, and agrees on the store id with the other replicas. */
export async function openLink(options: {
  address: RedisAddress;
  keys: Keys;
  /** What every step is told. */
  defaults: object;
  clock: (() => number) | undefined;
  log: Logger;
}): Promise<Link> {
  const { address, keys, defaults, clock, log } = options;
  const scripts = loadScripts();
  const client = connectRedis(address, "commands", log);
  const writeTogether = createTogether(client);
  const forgetLast: (() => void)[] = [];
  const forgetAll: (() => void)[] = [];
  let storeId = "";
  /** Raised whenever a connection is lost: what was known of the contents before is to be checked again. */
  let losses = 0;
  let verified = -1;
  let verifying: Promise<void> | undefined;
  let closed = false;
  let offset = 0;

  async function send(command: string, ...args: (string | number | Uint8Array)[]): Promise<Reply> {
    writeTogether();
    return (await client.callBuffer(command, args.map(toArgument))) as Reply;
  }

  async function evaluate({ sha, source }: Script, args: Argument[]): Promise<Reply> {
    return send("evalsha", sha, ...args).catch((error: unknown) => {
      if (!(error instanceof Error) || !error.message.startsWith("NOSCRIPT")) throw error;
      return send("eval", source, ...args);
    });
  }

  const script = (name: StepName | ReadName) => scripts.get(name) ?? missing(name);

  const ids = {
    read: () =>
      Promise.all(
        Array.from({ length: shards }, (_, shard) =>
          send("get", keys.storeId(shard)).then((id) => text(id) || undefined),
        ),
      ),
    write: async (shard: number, id: string) => void (await send("set", keys.storeId(shard), id)),
    decide: async (seen: string, id: string) =>
      text(await evaluate(script("set_store_id"), encode({ id: keys.storeId(0) }, { seen, id }, {}))),
  };

  function verify(): Promise<void> {
    verifying ??= establish().finally(() => {
      verifying = undefined;
    });
    return verifying;
  }

  async function establish(): Promise<void> {
    for (let seen = -1; seen !== losses; ) {
      seen = losses;
      const id = await establishStoreId(ids);
      if (storeId !== "" && id !== storeId) {
        log.error("the Redis store lost its contents, or a part of them; it has a new id", { reason: id });
        for (const forget of forgetAll) forget();
      }
      storeId = id;
      if (seen === losses) verified = losses;
    }
    await measureClock();
  }

  async function measureClock(): Promise<void> {
    const before = performance.now();
    const [seconds, micros] = (await masters(client)[0]?.time()) ?? [];
    const here = (before + performance.now()) / 2;
    if (seconds !== undefined) offset = Number(seconds) * 1_000 + Number(micros) / 1_000 - here;
  }

  const isVerified = () => verified === losses && client.status === "ready";

  /** Waits for a connection that was lost. */
  async function verifiedLink(deadline: number): Promise<void> {
    if (isVerified()) return;
    while (!closed && performance.now() < deadline) {
      if (client.status === "ready") await verify().catch(() => {});
      if (isVerified()) return;
      await pause();
    }
    throw unavailable("there is no connection to Redis");
  }

  /** Twice at least, and until the patience is over: whatever is sent here may be repeated. */
  async function attempt(work: () => Promise<Reply>, patience = patienceMs): Promise<Reply> {
    const deadline = performance.now() + patience;
    for (let failures = 0, before = storeId; ; failures++) {
      if (closed) throw unavailable("it was closed");
      await verifiedLink(Math.max(deadline, performance.now() + patienceMs));
      if (failures > 0 && before !== storeId) throw unavailable("it lost its contents");
      before = storeId;
      try {
        return await work();
      } catch (error) {
        if (isDefect(error)) throw error;
        if (failures > 0 && performance.now() >= deadline) throw unavailable(error);
        await pause();
      }
    }
  }

  function encode(names: StepKeys, values: object, bytes: StepBytes): Argument[] {
    const aliases = Object.keys(names);
    const parts = Object.entries(bytes).filter((entry): entry is [string, Uint8Array] => entry[1] !== undefined);
    const step = {
      ...defaults,
      ...values,
      ...(clock && { clock: clock() }),
      keys: Object.fromEntries(aliases.map((alias, index) => [alias, index + 1])),
      bytes: Object.fromEntries(parts.map(([alias], index) => [alias, index + 2])),
    };
    return [aliases.length, ...Object.values(names), JSON.stringify(step), ...parts.map(([, part]) => part)];
  }

  eachNode(client, (node) => {
    node.on("close", () => {
      losses += 1;
      for (const forget of forgetLast) forget();
    });
    node.on("ready", () => void verify().catch(() => {}));
  });
  // What no event tells of: a node that was exchanged, a clock that drifts.
  const check = setInterval(() => {
    if (client.status === "ready")
      void verify().catch((error: unknown) => log.warn("Redis does not answer", { error }));
  }, checkMs);
  check.unref();

  try {
    await whenReady(client, 10_000);
    await checkServers(client);
    await verify();
  } catch (error) {
    clearInterval(check);
    client.disconnect();
    throw error;
  }

  const run: Link["run"] = (name, names, values = {}, bytes = {}) => {
    const args = encode(names, values, bytes);
    return attempt(() => evaluate(script(name), args), ofExecutors.has(name) ? executorsPatienceMs : patienceMs);
  };

  const read: Link["read"] = (name, names, ...args) =>
    attempt(() => evaluate(script(name), [names.length, ...names, ...args]));

  return {
    get storeId() {
      return storeId;
    },
    now: () => clock?.() ?? Math.floor(performance.now() + offset),
    command: (name, ...args) => attempt(() => send(name, ...args)),
    run,
    read,
    hashes: async (...hashKeys) => replyList(await read("read_hashes", hashKeys)),
    onBreak: (forget) => void forgetLast.push(forget),
    onLost: (forget) => void forgetAll.push(forget),
    async ready() {
      if (closed || client.status !== "ready") return false;
      const slow = new Promise<boolean>((resolve) => setTimeout(resolve, 1_000, false).unref());
      const found = verify().then(isVerified, () => false);
      return Promise.race([found, slow]);
    },
    async close() {
      closed = true;
      clearInterval(check);
      await client.quit().catch(() => client.disconnect());
    },
  };
}

type Argument = string | number | Uint8Array;

const patienceMs = 1_000;
// The steps of calls that run: a short outage does not end them. An operation is remembered for longer than this.
const ofExecutors: ReadonlySet<StepName> = new Set([
  "append_output",
  "finish_call",
  "open_asks",
  "record_events",
  "renew_leases",
  "start_call",
]);
const executorsPatienceMs = 10_000;
const checkMs = 5_000;

const toArgument = (value: Argument) =>
  value instanceof Uint8Array && !Buffer.isBuffer(value)
    ? Buffer.from(value.buffer, value.byteOffset, value.byteLength)
    : value;

/** Before the next attempt. */
const pause = () => new Promise((resolve) => setTimeout(resolve, 20));

/** A mistake of ours in a script or command. */
const isDefect = (error: unknown) =>
  error instanceof Error && error.name === "ReplyError" && /^(ERR|WRONGTYPE)/.test(error.message);

function missing(name: string): never {
  throw new Error(`there is no script ${name}`);
}

/** The refusal of what Redis failed to do, or to answer. */
function unavailable(cause: unknown): RequestError {
  const fact = cause instanceof Error ? cause.message : String(cause);
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    `the store is not available (${fact}): try again with the same ids`,
    {},
    { cause },
  );
}
