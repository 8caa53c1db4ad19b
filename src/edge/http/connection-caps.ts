import { readFileSync } from "node:fs";
import type { Socket } from "node:net";
import ipaddr from "ipaddr.js";
import type { Limits } from "../../config/config.ts";

/** Caps on open connections: of all clients, and of each address. */
export interface ConnectionCaps {
  /** Counts a connection until it closes; returns false, and counts nothing, if a cap is reached. */
  admit(socket: Socket): boolean;
  /** Number of connections that are open. */
  readonly openCount: number;
  /** Number of connections that were refused since the start. */
  readonly refusedCount: number;
}

type CapLimits = Pick<Limits, "connections" | "connectionsPerAddress" | "connectionsFromLoopback">;

/**
 * Returns the limits of connections that leave half of the descriptors of the process to commands, files and the store. Of fewer
 * connections the same part is for one address.
 */
export function withinDescriptors(limits: CapLimits, maxDescriptors = maxOpenFiles()): CapLimits {
  const connections = Math.min(limits.connections, Math.floor(maxDescriptors / 2));
  const part = (count: number) => Math.max(1, Math.floor((count * connections) / limits.connections));
  return {
    connections,
    connectionsPerAddress: part(limits.connectionsPerAddress),
    connectionsFromLoopback: part(limits.connectionsFromLoopback),
  };
}

/** Reads RLIMIT_NOFILE; infinite if there is none. */
export function maxOpenFiles(): number {
  const [, count] = /^Max open files +(\d+)/m.exec(readFileSync("/proc/self/limits", "utf8")) ?? [];
  return count === undefined ? Number.POSITIVE_INFINITY : Number(count);
}

/** Creates the caps. Connections from a trusted proxy, which has the clients of many addresses, count only in total. */
export function createConnectionCaps({
  limits,
  trustedProxies,
  onRefused,
}: {
  limits: CapLimits;
  /** Addresses and networks. */
  trustedProxies: readonly string[];
  onRefused: (refusal: { address: string; limit: string; refusedCount: number }) => void;
}): ConnectionCaps {
  const proxies = trustedProxies.map(parseNetwork);
  const byOrigin = new Map<string, number>();
  let openCount = 0;
  let refusedCount = 0;

  /** Returns the name of the cap that is reached. */
  const reachedCap = (origin: string | undefined): string | undefined => {
    if (openCount >= limits.connections) return "connections";
    if (origin === undefined) return undefined;
    const count = byOrigin.get(origin) ?? 0;
    if (origin === loopback) return count >= limits.connectionsFromLoopback ? "connections_from_loopback" : undefined;
    return count >= limits.connectionsPerAddress ? "connections_per_address" : undefined;
  };

  return {
    admit(socket) {
      const address = socket.remoteAddress ?? "";
      const origin = originOf(address, proxies);
      const limit = reachedCap(origin);
      if (limit !== undefined) {
        refusedCount += 1;
        onRefused({ address, limit, refusedCount });
        return false;
      }
      openCount += 1;
      if (origin !== undefined) byOrigin.set(origin, (byOrigin.get(origin) ?? 0) + 1);
      socket.once("close", () => {
        openCount -= 1;
        if (origin === undefined) return;
        const left = (byOrigin.get(origin) ?? 1) - 1;
        if (left === 0) byOrigin.delete(origin);
        else byOrigin.set(origin, left);
      });
      return true;
    },
    get openCount() {
      return openCount;
    },
    get refusedCount() {
      return refusedCount;
    },
  };
}

const loopback = "loopback";

type Network = ReturnType<typeof ipaddr.parseCIDR>;

function parseNetwork(text: string): Network {
  if (text.includes("/")) return ipaddr.parseCIDR(text);
  const address = ipaddr.process(text);
  return [address, address.kind() === "ipv4" ? 32 : 128];
}

/**
 * Returns what the connections of an address are counted under: the address, or the /64 network of an IPv6 address, all of which
 * one client has. Undefined for a trusted proxy, and for a client that has already left.
 */
function originOf(text: string, proxies: readonly Network[]): string | undefined {
  if (!ipaddr.isValid(text)) return undefined;
  const address = ipaddr.process(text);
  if (proxies.some(([network, bits]) => network.kind() === address.kind() && address.match(network, bits)))
    return undefined;
  if (address.range() === "loopback") return loopback;
  if (address.kind() === "ipv4") return address.toString();
  return Buffer.from(address.toByteArray().slice(0, 8)).toString("hex");
}
