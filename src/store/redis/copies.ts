import { Cluster, type Redis } from "ioredis";
import type { StoreSafety } from "../../call/ports.ts";
import { masters } from "./client.ts";
import { type Connection, encodeStep, evaluateScript } from "./connection.ts";
import { number } from "./reply.ts";

/** The copies of the masters, and the settings by which a master without them refuses writes. */
export type Copies = ReturnType<typeof createCopies>;

/** Settings of the copies. */
export interface CopySettings {
  /** Acknowledge only what enough copies have. By default: where there are copies. */
  strict?: boolean | undefined;
  /** Copies of each master. By default the highest number that was counted. */
  copies?: number | undefined;
}

/**
 * Creates the check of the copies; nothing is checked yet. The number that is expected rises with what is counted, and falls only by
 * the setting: a copy that is away may lack what others have confirmed, and a failover may promote it when it is back.
 */
export function createCopies(connection: Connection, settings: CopySettings) {
  const { client, log } = connection;
  let state: StoreSafety = { copies: 0, expected: 0, required: 0, warnings: [] };

  /** Returns how many copies must have a write: a majority. */
  function requiredOf(expected: number): number {
    const isStrict = settings.strict ?? expected > 0;
    return isStrict ? Math.floor(expected / 2) + 1 : 0;
  }

  /** Returns the number of copies that each master should have, as all replicas of the store know it. */
  async function agreeOn(counted: number): Promise<number> {
    const highest = Math.max(counted, state.expected);
    if (settings.strict === false) return settings.copies ?? highest;
    const step = encodeStep({ copies: connection.keys.copies }, { counted: highest, set: settings.copies }, {});
    return number(await evaluateScript(connection, "expect_copies", step));
  }

  function apply(found: Omit<StoreSafety, "required">): void {
    const required = requiredOf(found.expected);
    if (required !== state.required)
      log.info(`a write is acknowledged once ${required} of ${found.expected} copies of Redis have it`);
    if (required !== state.required && required > 0 && required === found.expected)
      log.warn(
        `all ${found.expected} copies of Redis must have a write before it is acknowledged: after a planned failover requests wait until the former master follows as a copy, some 12 s with Sentinel, and one lost server stops them; run three copies, of which two are enough`,
      );
    state = { ...found, required };
    connection.isStrict = required > 0;
  }

  return {
    /** State as of the last check. */
    safety: (): StoreSafety => state,
    /** Counts the copies and reads the settings; logs what has changed. */
    async check(): Promise<void> {
      const nodes = await Promise.all(masters(client).map(checkMaster));
      const copies = Math.min(...nodes.map((node) => node.copies));
      const expected = await agreeOn(copies);
      const warnings = new Map(nodes.flatMap(({ warning, address }) => (warning ? [[warning, address]] : [])));
      const gap = gapOf(copies, expected, requiredOf(expected));
      if (gap !== undefined) warnings.set(gap, nodes.find((node) => node.copies === copies)?.address ?? "");
      for (const [warning, address] of warnings)
        if (!state.warnings.includes(warning)) log.warn(warning, { reason: address });
      if (state.warnings.length > 0 && warnings.size === 0)
        log.info("the masters of Redis have all their copies, and refuse writes that no copy would get");
      apply({ copies, expected, warnings: [...warnings.keys()] });
    },
    /** Takes note of the copies of one master, so that another copy counts before the next check. */
    observe({ copies }: Pick<Replication, "copies">): void {
      // In a cluster the master with fewest counts.
      if (client instanceof Cluster || settings.copies !== undefined || copies <= state.expected) return;
      apply({ ...state, copies, expected: copies });
    },
  };
}

/** Describes a number of copies that is not the expected one, and the next step. */
function gapOf(copies: number, expected: number, required: number): string | undefined {
  if (required === 0 || copies === expected) return undefined;
  const setting = (count: number) => `set store_copies = ${count} and restart every replica`;
  if (copies > expected)
    return `Redis has ${copies} copies of a master, and store_copies is ${expected}: a failover may promote one that lacks what was acknowledged; ${setting(copies)}`;
  const refused = copies < required ? ", and requests are refused, since a failover could lose what they write" : "";
  return `${copies} of ${expected} copies of Redis are connected${refused}: start the others; if they are gone for good, ${setting(copies)}`;
}

/** Findings about one master. */
interface CheckedMaster {
  address: string;
  copies: number;
  warning?: string;
}

/** Seconds after which a silent copy should count as missing. */
const maxLagSeconds = 5;
const unsafe = "so a failover may lose what was acknowledged";

async function checkMaster(node: Redis): Promise<CheckedMaster> {
  const { copies } = await readReplication(node);
  const checked = { address: addressOf(node), copies };
  if (copies === 0) return checked;
  const settings = await readSettings(node, "min-replicas-*");
  if (settings === undefined) {
    const warning = `Redis does not show its settings: check that min-replicas-to-write is at least 1 and min-replicas-max-lag is 1 to ${maxLagSeconds} on every server`;
    return { ...checked, warning };
  }
  const needed = Number(settings.get("min-replicas-to-write"));
  const lag = Number(settings.get("min-replicas-max-lag"));
  const next = (name: string, value: number) =>
    `run CONFIG SET ${name} ${value} and set the same in the configuration of every server`;
  if (needed < 1)
    return {
      ...checked,
      warning: `Redis accepts writes that no copy has (min-replicas-to-write ${needed}), ${unsafe}: ${next("min-replicas-to-write", 1)}`,
    };
  if (lag < 1 || lag > maxLagSeconds)
    return {
      ...checked,
      warning: `Redis accepts writes while its copies are silent (min-replicas-max-lag ${lag}), ${unsafe}: ${next("min-replicas-max-lag", maxLagSeconds)}`,
    };
  return checked;
}

/** Reads settings of a server; undefined where that is not allowed, as at some providers. */
async function readSettings(node: Redis, pattern: string): Promise<ReadonlyMap<string, string> | undefined> {
  const reply = await node.call("config", "get", pattern).catch((error: unknown) => {
    if (error instanceof Error && error.name === "ReplyError") return undefined;
    throw error;
  });
  if (!Array.isArray(reply)) return undefined;
  return new Map(reply.flatMap((name, index) => (index % 2 === 0 ? [[String(name), String(reply[index + 1])]] : [])));
}

/** State of replication at one server, as INFO reports it. */
export interface Replication {
  readonly isMaster: boolean;
  /** Identifies the history of writes; a copy that becomes the master begins another one. */
  readonly id: string;
  /** Bytes of that history. */
  readonly offset: number;
  /** The history that this server copied before it became the master, and the offset at which its own one begins. */
  readonly formerId: string;
  readonly formerOffset: number;
  /** Connected copies that follow. */
  readonly copies: number;
}

/** Parses the section `replication` of INFO. */
export function parseReplication(info: string): Replication {
  const fact = (name: string) => new RegExp(`^${name}:(.*?)\\r?$`, "m").exec(info)?.[1] ?? "";
  return {
    isMaster: fact("role") === "master",
    id: fact("master_replid"),
    offset: Number(fact("master_repl_offset")),
    formerId: fact("master_replid2"),
    formerOffset: Number(fact("second_repl_offset")),
    copies: info.match(/^slave\d+:.*\bstate=online\b/gm)?.length ?? 0,
  };
}

/** Reads the state of replication of a server. */
export async function readReplication(node: Redis): Promise<Replication> {
  return parseReplication(await node.info("replication"));
}

/** Names a server in messages to operators. */
export function addressOf({ options, stream }: Redis): string {
  if (options.path) return options.path;
  // Behind a sentinel the options name no server.
  const { remoteAddress, remotePort } = stream ?? {};
  return remoteAddress === undefined ? `${options.host}:${options.port}` : `${remoteAddress}:${remotePort}`;
}
