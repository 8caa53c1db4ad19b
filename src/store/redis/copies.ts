import type { Redis } from "ioredis";
import type { StoreSafety } from "../../call/ports.ts";
import { masters } from "./client.ts";
import type { Connection } from "./connection.ts";
import { addressOf, readReplication } from "./replication.ts";

/** The copies of the masters, and the settings by which a master without them refuses writes. */
export interface Copies {
  /** State as of the last check. */
  safety(): StoreSafety;
  /** Counts the copies and reads the settings; logs what has changed. */
  check(): Promise<void>;
}

/** Settings of the copies. */
export interface CopySettings {
  /** Acknowledge only what enough copies have. By default: where there are copies. */
  strict?: boolean | undefined;
  /** Copies of each master. By default they are counted. */
  copies?: number | undefined;
}

/** Creates the check of the copies; nothing is checked yet. */
export function createCopies(
  connection: Pick<Connection, "client" | "log" | "isStrict">,
  settings: CopySettings,
): Copies {
  const { client, log } = connection;
  let state: StoreSafety = { copies: 0, required: 0, warnings: [] };

  /** Returns how many copies must have a write: a majority, and at least one once there were copies. */
  function requiredOf(copies: number): number {
    const expected = settings.copies ?? copies;
    const isStrict = settings.strict ?? (expected > 0 || state.required > 0);
    return isStrict ? Math.floor(expected / 2) + 1 : 0;
  }

  return {
    safety: () => state,
    async check() {
      const nodes = await Promise.all(masters(client).map(checkMaster));
      const warnings = new Set<string>();
      for (const { warning, address } of nodes) {
        if (warning === undefined) continue;
        if (!state.warnings.includes(warning)) log.warn(warning, { reason: address });
        warnings.add(warning);
      }
      if (state.warnings.length > 0 && warnings.size === 0)
        log.info("the masters of Redis refuse writes that no copy would get");
      const copies = Math.min(...nodes.map((node) => node.copies));
      const required = requiredOf(copies);
      if (required !== state.required)
        log.info(`a write is acknowledged once ${required} of ${settings.copies ?? copies} copies of Redis have it`);
      state = { copies, required, warnings: [...warnings] };
      connection.isStrict = required > 0;
    },
  };
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
