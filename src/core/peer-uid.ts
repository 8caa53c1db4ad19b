import { readFile } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
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
export async function peerUid(ends: SocketEnds): Promise<number | undefined> {
  return (await findOwners(ends, ({ accepted }) => accepted !== undefined)).accepted;
}

/**
 * Returns the owners of the other end of a client's connection: the user of the program that accepted it, and those that listen on
 * the address itself or on all addresses. Waits a while for the program to accept it.
 */
export async function serverUids(ends: SocketEnds): Promise<SocketOwners> {
  const look = () => findOwners(ends, ({ accepted, listeners }) => accepted !== undefined && listeners.length > 0);
  let found = await look();
  for (let i = 0; found.accepted === undefined && found.listeners.length > 0 && i < maxAcceptChecks; i++) {
    await setTimeout(acceptCheckMs);
    found = await look();
  }
  return found;
}

/** Users behind an address of this machine. */
export interface SocketOwners {
  /** Undefined if no program accepted the connection. */
  accepted: number | undefined;
  /** Empty if it is unknown, as in `peerUid`. Root's may be a unit of systemd, which holds the port for the service. */
  listeners: number[];
}

const acceptCheckMs = 20;
const maxAcceptChecks = 100;

/** Reads the table of IPv4, and that of IPv6 unless the first one was enough: a reading of either takes the kernel milliseconds. */
async function findOwners(ends: SocketEnds, isEnough: (found: SocketOwners) => boolean): Promise<SocketOwners> {
  const { localAddress, localPort, remoteAddress, remotePort } = ends;
  const [own, peer] = [endsOf(remoteAddress, remotePort), endsOf(localAddress, localPort)];
  const all = [endsOf("0.0.0.0", remotePort)[0], endsOf("::", remotePort)[1]];
  const found: SocketOwners = { accepted: undefined, listeners: [] };
  for (const [table, file] of tables.entries()) {
    // A client with an IPv6 socket that connects to an IPv4 address is listed in the second table, as is a listener on all addresses.
    if (own[table] === undefined) continue;
    for (const { local, remote, state, uid, inode } of await readTable(file)) {
      const isEnd = state === established && local === own[table] && remote === peer[table];
      // A connection that no program has accepted yet has no file, and counts as one of root.
      if (isEnd && inode !== "0") found.accepted ??= uid;
      if (state === listening && (local === own[table] || local === all[table])) found.listeners.push(uid);
    }
    if (isEnough(found)) break;
  }
  return found;
}

const tables = ["/proc/net/tcp", "/proc/net/tcp6"];

async function readTable(file: string) {
  const text = await readFile(file, "latin1").catch(() => "");
  return text.split("\n").flatMap((row) => {
    const [, local, remote, state, , , , uid, , inode] = row.trim().split(/ +/);
    if (local === undefined || remote === undefined || state === undefined || uid === undefined) return [];
    return [{ local, remote, state, uid: Number(uid), inode }];
  });
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

/** States of a socket: a connection that neither end has closed; a listener. */
const established = "01";
const listening = "0A";
