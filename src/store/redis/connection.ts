import type { Logger } from "../../core/logger.ts";
import { createRepeatedFailure } from "../../core/repeated-failure.ts";
import { type Client, connectRedis, createCork } from "./client.ts";
import { type Keys, shards } from "./keys.ts";
import type { Reply } from "./reply.ts";
import { loadScripts, type ReadName, type Script, type StepName } from "./scripts.ts";
import type { RedisAddress } from "./url.ts";

/** Knowledge about the counter of a store, which replicas raise while they run. A store whose counter went back was restored. */
export interface StoreCounter {
  /** The store that was counted. */
  storeId: string;
  /** Count that this store has at least: it was raised, confirmed, and found again later than a server may lose it. */
  known: number;
  /** The last raise, by the clock of this process. */
  raised: { count: number; at: number } | undefined;
  /** Time of the last restore that was found, by the time of the store; 0: none. */
  restored: number;
}

const newCounter = (): StoreCounter => ({ storeId: "", known: 0, raised: undefined, restored: 0 });

/** State of the connection to Redis, and of the knowledge about its contents. */
export interface Connection {
  readonly client: Client;
  readonly keys: Keys;
  readonly log: Logger;
  readonly scripts: ReadonlyMap<StepName | ReadName, Script>;
  /** Scripts whose source is being sent. */
  readonly loading: Set<StepName | ReadName>;
  /** Corks the sockets until the end of the turn, so that its commands go out together. */
  readonly cork: () => void;
  /** Logs that Redis refuses writes since it has reached maxmemory, once and then each ten seconds. */
  readonly fullness: ReturnType<typeof createRepeatedFailure<Error>>;
  /** Called when a connection is lost. */
  readonly breakListeners: (() => void)[];
  /** Called when the contents were lost. */
  readonly lossListeners: (() => void)[];
  storeId: string;
  /** Number of lost connections; after each one the contents must be verified again. */
  losses: number;
  /** The value of `losses` at the last verification. */
  verifiedLosses: number;
  verifying: Promise<void> | undefined;
  /** Names this replica. Undefined for a program that acknowledges nothing to clients. */
  readonly replica: string | undefined;
  /** File in which this replica stores what it knows of the histories. */
  readonly historyFile: string | undefined;
  /** File in which it stores how far the counter of the store was raised. */
  readonly counterFile: string | undefined;
  readonly counter: StoreCounter;
  /** Ids of the histories of writes of the masters with the shards of each; one whose master is away stays until another serves these. */
  histories: ReadonlyMap<string, readonly number[]>;
  /** Offset up to which each history was acknowledged here. */
  readonly acknowledged: Map<string, number>;
  /** Generation of each shard: the number of times that it may have lost acknowledged work. */
  readonly generations: number[];
  /** Number of raises that were noticed here; no step is taken again across one. */
  raises: number;
  /** True once a master had copies. */
  isReplicated: boolean;
  /** True if only what enough copies have is acknowledged. */
  isStrict: boolean;
  /** Raised when another history begins: what was answered before may be lost. */
  epoch: number;
  isClosed: boolean;
  readonly time: RedisClock;
}

/** An argument of a command, as the driver takes it. */
export type Argument = string | number | Uint8Array;

/** Starts to connect; the contents are not verified yet. */
export function createConnection(options: {
  address: RedisAddress;
  keys: Keys;
  log: Logger;
  replica?: string;
  historyFile?: string | undefined;
  counterFile?: string | undefined;
}): Connection {
  const { address, keys, log, replica, historyFile, counterFile } = options;
  const client = connectRedis(address, "commands", log);
  const fullness = createRepeatedFailure<Error>((error, count) =>
    log.error(
      "Redis has reached its maxmemory: new calls are refused, and open ones can only end; raise maxmemory, or remove other data",
      { error, count },
    ),
  );
  return {
    ...{
      client,
      keys,
      log,
      scripts: loadScripts(),
      loading: new Set<StepName | ReadName>(),
      cork: createCork(client),
      fullness,
    },
    ...{ breakListeners: [], lossListeners: [], storeId: "", losses: 0, verifiedLosses: -1 },
    ...{
      verifying: undefined,
      replica,
      historyFile,
      counterFile,
      counter: newCounter(),
      histories: new Map<string, readonly number[]>(),
      acknowledged: new Map<string, number>(),
    },
    ...{ generations: Array.from({ length: shards }, () => 0), raises: 0, isReplicated: false, isStrict: false },
    ...{ epoch: 0, isClosed: false, time: createRedisClock() },
  };
}

/** Sends one command. */
export async function sendCommand(
  { client, cork }: Connection,
  command: string,
  ...args: readonly Argument[]
): Promise<Reply> {
  cork();
  return (await client.callBuffer(command, args.map(toDriver))) as Reply;
}

/**
 * Runs a script by its digest, or by its source where Redis does not have it yet. Of many runs at a time one sends the source, and the
 * others send the digest again behind it.
 */
export async function evaluateScript(
  connection: Connection,
  name: StepName | ReadName,
  args: readonly Argument[],
): Promise<Reply> {
  const script = connection.scripts.get(name);
  if (script === undefined) throw new Error(`there is no script ${name}`);
  const { loading } = connection;
  const byDigest = () => sendCommand(connection, "evalsha", script.sha, ...args).catch(ifMissing);
  let reply = await byDigest();
  // Another node of a cluster may not have it even then.
  if (reply === undefined && loading.has(name)) reply = await byDigest();
  if (reply !== undefined) return reply;
  loading.add(name);
  return await sendCommand(connection, "eval", script.source, ...args).finally(() => loading.delete(name));
}

/** Returns undefined for the answer of a Redis that does not have a script. */
function ifMissing(error: unknown): undefined {
  if (!(error instanceof Error) || !error.message.startsWith("NOSCRIPT")) throw error;
}

/** Encodes the arguments of a step for the prelude, which resolves its keys and bytes by name. */
export function encodeStep(
  keys: Readonly<Record<string, string>>,
  values: object,
  bytes: Readonly<Record<string, Uint8Array | undefined>>,
): Argument[] {
  const aliases = Object.keys(keys);
  const parts = Object.entries(bytes).filter((entry): entry is [string, Uint8Array] => entry[1] !== undefined);
  const step = {
    ...values,
    keys: Object.fromEntries(aliases.map((alias, index) => [alias, index + 1])),
    bytes: Object.fromEntries(parts.map(([alias], index) => [alias, index + 2])),
  };
  return [aliases.length, ...Object.values(keys), JSON.stringify(step), ...parts.map(([, part]) => part)];
}

const toDriver = (value: Argument) =>
  value instanceof Uint8Array && !Buffer.isBuffer(value)
    ? Buffer.from(value.buffer, value.byteOffset, value.byteLength)
    : value;

/**
 * Time of the store as a replica knows it. That time is Redis' clock, without jumps: when the clock of a server jumps, the time
 * of the store goes on and is behind that clock from then on.
 */
interface RedisClock {
  /** Ms by which the time of the store is behind the clock of each server. */
  readonly behind: Map<string, number>;
  /** Difference between the time of the store and `performance.now()`, in ms; undefined before the first measurement. */
  offsetMs: number | undefined;
  /** Time for which the machine had slept at the last measurement, in ms. */
  sleptMs: number;
  /** Number of times that another replica measured, as of the last measurement. */
  turns: number;
  /** Servers of which a jump was found before this replica started. */
  readonly confirmed: Set<string>;
  agreeing: Promise<void> | undefined;
}

/** Creates the clock of a connection; nothing is measured yet. */
const createRedisClock = (): RedisClock => ({
  ...{ behind: new Map(), offsetMs: undefined, sleptMs: 0, turns: 0, confirmed: new Set(), agreeing: undefined },
});
