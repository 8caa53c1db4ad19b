import type { Redis } from "ioredis";

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
