import { readFile } from "node:fs/promises";
import ipaddr from "ipaddr.js";

/** Both ends of a connection, as its server sees them. */
export interface SocketEnds {
  readonly localAddress?: string | undefined;
  readonly localPort?: number | undefined;
  readonly remoteAddress?: string | undefined;
  readonly remotePort?: number | undefined;
}

/**
 * Returns the user of the operating system that owns the other end of a connection. Undefined if it is unknown: the other end is
 * on another machine, in another network namespace, has closed its end, or the system has no /proc/net. Behind a proxy on this
 * machine it is the proxy's user.
 */
export async function peerUid({
  localAddress,
  localPort,
  remoteAddress,
  remotePort,
}: SocketEnds): Promise<number | undefined> {
  const [own, peer] = [endsOf(remoteAddress, remotePort), endsOf(localAddress, localPort)];
  // A client with an IPv6 socket that connects to an IPv4 address is listed in the second table.
  for (const [index, table] of ["/proc/net/tcp", "/proc/net/tcp6"].entries()) {
    const rows = await readFile(table, "latin1").catch(() => "");
    for (const row of rows.split("\n")) {
      const [, local, remote, state, , , , uid] = row.trim().split(/ +/);
      if (state === established && local !== undefined && local === own[index] && remote === peer[index])
        return Number(uid);
    }
  }
  return undefined;
}

/** The other end of a connection. */
export interface Peer {
  /** True if it is on this machine. */
  readonly isLocal: boolean;
  /** The user of the operating system that owns it; see `peerUid`. */
  readonly uid: number | undefined;
}

/** Returns the other end of a connection. A local one may hide its user, by closing its end before this is called. */
export async function peerOf(ends: SocketEnds): Promise<Peer> {
  const uid = await peerUid(ends);
  return { isLocal: uid !== undefined || isLocalEnd(ends), uid };
}

function isLocalEnd({ localAddress, remoteAddress = "" }: SocketEnds): boolean {
  if (!ipaddr.isValid(remoteAddress)) return false;
  return remoteAddress === localAddress || ipaddr.process(remoteAddress).range() === "loopback";
}

/** Returns an address and port as the table of IPv4 and that of IPv6 write it; undefined for a table that cannot contain it. */
function endsOf(text: string | undefined, port: number | undefined): (string | undefined)[] {
  if (text === undefined || port === undefined || !ipaddr.isValid(text)) return [];
  const address = ipaddr.process(text);
  const ending = `:${port.toString(16).toUpperCase().padStart(4, "0")}`;
  if (!(address instanceof ipaddr.IPv4)) return [undefined, hexOf(address.toByteArray()) + ending];
  return [address, address.toIPv4MappedAddress()].map((each) => hexOf(each.toByteArray()) + ending);
}

/** Writes an address as the kernel does: in words of four bytes, each as a little-endian number. */
function hexOf(bytes: readonly number[]): string {
  return Buffer.from(bytes).swap32().toString("hex").toUpperCase();
}

/** State of a connection that neither end has closed. */
const established = "01";
