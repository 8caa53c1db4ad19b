import type { Logger } from "../core/logger.ts";
import { matcher } from "../policy/wildcard.ts";
import type { PlaceNetwork } from "../sandbox/network/session-networks.ts";

/** A program that outlives single calls, and the wildcards of the hosts that the configuration names for it. */
export interface NetworkedProgram {
  name: string;
  /** Names it in messages. */
  title: string;
  /** The table of the configuration that has `hosts`. */
  table: string;
  hosts: readonly string[];
  /** Ports of this machine's loopback that it reaches. */
  localPorts?: readonly number[];
}

/** Creates the network of such a program: it reaches the configured hosts, and no person is asked. */
export function hostNetwork(
  { name, title, table, hosts, localPorts = [] }: NetworkedProgram,
  { log, args }: { log: Logger; args: object },
): PlaceNetwork {
  const matches = hosts.map(matcher);
  return {
    name,
    forwards: localPorts.map((port) => ({ host: "127.0.0.1", port })),
    judge(url) {
      const { hostname, host } = new URL(url);
      const isAllowed = matches.some((match) => match(hostname) || match(host));
      return isAllowed
        ? { action: "allow", reason: `${table} in the configuration names this host` }
        : { action: "deny", reason: `${title} may not reach ${host}: add it to hosts in ${table}` };
    },
    refused: (_, reason) => log.warn(`the network refused a request of ${title}`, { args, reason }),
    used: () => {},
    unavailable: (reason) => log.warn(`${title} has no network`, { args, reason }),
  };
}

/** Describes the network of a program for people. */
export function hostWords(hosts: readonly string[], localPorts: readonly number[] = []): string {
  const places = [...hosts, ...localPorts.map((port) => `127.0.0.1:${port}`)];
  return places.length === 0 ? "no network" : `the network for ${places.join(", ")}`;
}
