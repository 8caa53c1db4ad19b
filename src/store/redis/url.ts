import type { ClusterNode, RedisOptions } from "ioredis";
import { StoreUnusable } from "../errors.ts";

/** Options of a connection, without the mapping of replies. */
export type ConnectionOptions = Omit<RedisOptions, "replyMapping">;

/** Address of a Redis: a single one, reached directly or through sentinels, or a cluster. */
export type RedisAddress =
  | { kind: "single"; options: ConnectionOptions }
  | { kind: "cluster"; nodes: ClusterNode[]; access: Pick<ConnectionOptions, "username" | "password" | "tls"> };

/**
 * Reads `redis://host:port/db`, `redis+unix:///path/to/socket?db=0`, `redis+sentinel://host:port,host:port/name` and
 * `redis+cluster://host:port,host:port`, each with `user:password@` where needed; `rediss…` instead of `redis…` is TLS.
 */
export function parseRedisUrl(url: string): RedisAddress {
  const [, scheme, form, credentials, hosts, path, query] = syntax.exec(url) ?? [];
  if (scheme === undefined || hosts === undefined)
    throw invalid("it has none of the supported forms, such as redis://host:port/db");
  const access = { ...readCredentials(credentials), ...(scheme === "rediss" && { tls: {} }) };
  const name = decodeURIComponent(path ?? "");
  const db = Number(new URLSearchParams(query).get("db") ?? 0);

  switch (form) {
    case "unix":
      if (hosts !== "" || name === "") throw invalid("write the socket as redis+unix:///path/to/socket");
      return { kind: "single", options: { ...access, path: `/${name}`, db: checkDb(db) } };
    case "sentinel":
      if (name === "") throw invalid("the name of the master is missing: redis+sentinel://host:port,host:port/NAME");
      return {
        kind: "single",
        options: {
          ...access,
          // Without `enableTLSForSentinelMode` the driver connects to the master without TLS, whatever `tls` is.
          ...(access.tls && { sentinelTLS: access.tls, enableTLSForSentinelMode: true }),
          ...{ sentinels: readHosts(hosts, 26379), name, db: checkDb(db) },
        },
      };
    case "cluster":
      return { kind: "cluster", nodes: readHosts(hosts, 6379), access };
    default: {
      const [node, ...more] = readHosts(hosts, 6379);
      if (node === undefined || more.length > 0)
        throw invalid("it names several hosts: write redis+cluster:// or redis+sentinel://");
      return { kind: "single", options: { ...access, ...node, db: checkDb(name === "" ? db : Number(name)) } };
    }
  }
}

/** Returns the number of the database; a cluster has only the first one. */
export const databaseOf = (address: RedisAddress): number =>
  address.kind === "single" ? (address.options.db ?? 0) : 0;

const syntax = /^(rediss?)(?:\+(unix|sentinel|cluster))?:\/\/(?:([^@/]*)@)?([^/?]*)(?:\/([^?]*))?(?:\?(.*))?$/;

function readCredentials(text = ""): { username?: string; password?: string } {
  if (text === "") return {};
  const [username = "", ...rest] = text.split(":");
  const password = decodeURIComponent(rest.join(":"));
  return username === "" ? { password } : { username: decodeURIComponent(username), password };
}

function readHosts(text: string, defaultPort: number): { host: string; port: number }[] {
  return text.split(",").map((each) => {
    const [, host, port] = /^(\[[^\]]+\]|[^:]+)(?::(\d+))?$/.exec(each) ?? [];
    if (host === undefined) throw invalid(`"${each}" is no host:port`);
    return { host: host.replace(/^\[|\]$/g, ""), port: Number(port ?? defaultPort) };
  });
}

function checkDb(db: number): number {
  if (!Number.isInteger(db) || db < 0) throw invalid("the database is a number from 0 on");
  return db;
}

/** Reports an invalid URL without quoting it, since it may contain a password. */
const invalid = (fact: string) => new StoreUnusable(`the URL of the Redis store cannot be used: ${fact}`);
