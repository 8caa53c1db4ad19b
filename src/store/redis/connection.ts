import type { Logger } from "../../core/logger.ts";
import { createRepeatedFailure } from "../../core/repeated-failure.ts";
import { type Client, connectRedis, createCork } from "./client.ts";
import type { Keys } from "./keys.ts";
import type { Reply } from "./reply.ts";
import { loadScripts, type ReadName, type Script, type StepName } from "./scripts.ts";
import type { RedisAddress } from "./url.ts";

/** State of the connection to Redis, and of the knowledge about its contents. */
export interface Connection {
  readonly client: Client;
  readonly keys: Keys;
  readonly log: Logger;
  readonly scripts: ReadonlyMap<StepName | ReadName, Script>;
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
  isClosed: boolean;
  /** Difference between Redis' clock and `performance.now()`, in ms. */
  clockOffsetMs: number;
}

/** An argument of a command, as the driver takes it. */
export type Argument = string | number | Uint8Array;

/** Starts to connect; the contents are not verified yet. */
export function createConnection(options: { address: RedisAddress; keys: Keys; log: Logger }): Connection {
  const { address, keys, log } = options;
  const client = connectRedis(address, "commands", log);
  const fullness = createRepeatedFailure<Error>((error, count) =>
    log.error(
      "Redis has reached its maxmemory: new calls are refused, and open ones can only end; raise maxmemory, or remove other data",
      { error, count },
    ),
  );
  return {
    ...{ client, keys, log, scripts: loadScripts(), cork: createCork(client), fullness },
    ...{ breakListeners: [], lossListeners: [], storeId: "", losses: 0, verifiedLosses: -1 },
    ...{ verifying: undefined, isClosed: false, clockOffsetMs: 0 },
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

/** Runs a script by its digest, or by its source where Redis does not have it yet. */
export async function evaluateScript(
  connection: Connection,
  name: StepName | ReadName,
  args: readonly Argument[],
): Promise<Reply> {
  const script = connection.scripts.get(name);
  if (script === undefined) throw new Error(`there is no script ${name}`);
  return sendCommand(connection, "evalsha", script.sha, ...args).catch((error: unknown) => {
    if (!(error instanceof Error) || !error.message.startsWith("NOSCRIPT")) throw error;
    return sendCommand(connection, "eval", script.source, ...args);
  });
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
