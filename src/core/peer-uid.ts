import { closeSync, promises as files, openSync, readSync } from "node:fs";
import { isIPv4, isIPv6 } from "node:net";
import { setTimeout } from "node:timers/promises";

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
export async function peerUid(socket: SocketEnds): Promise<number | undefined> {
  const ends = endsNow(socket);
  for (const [table, file] of tables.entries()) {
    if (!canContain(ends, table)) continue;
    const found = findOwners(ends, table, (await files.readFile(file, "latin1").catch(() => "")).split("\n"));
    if (found.accepted !== undefined) return found.accepted;
  }
  return undefined;
}

/**
 * Returns the owners of the other end of a client's connection: the user of the program that accepted it, and those that listen on
 * the address itself or on all addresses. Waits a while for the program to accept it.
 */
export async function serverUids(ends: SocketEnds): Promise<SocketOwners> {
  let found = readOwners(ends);
  for (let i = 0; found.accepted === undefined && found.listeners.length > 0 && i < maxAcceptChecks; i++) {
    await setTimeout(acceptCheckMs);
    found = readOwners(ends);
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

const acceptCheckMs = 10;
const maxAcceptChecks = 200;

/** Reads the table of IPv4, and that of IPv6 unless the first one had all: a reading of either takes the kernel milliseconds. */
function readOwners(ends: SocketEnds): SocketOwners {
  const found: SocketOwners = { accepted: undefined, listeners: [] };
  for (const [table, file] of tables.entries()) {
    if (!canContain(ends, table)) continue;
    const { accepted, listeners } = findOwners(ends, table, rowsOf(file));
    found.accepted ??= accepted;
    found.listeners.push(...listeners);
    if (found.accepted !== undefined && found.listeners.length > 0) break;
  }
  return found;
}

/** Finds owners in the rows of a table, up to the connection itself: the kernel lists all listeners before the connections. */
function findOwners(ends: SocketEnds, table: number, rows: Iterable<string>): SocketOwners {
  const { localAddress, localPort, remoteAddress, remotePort } = ends;
  const [own, peer] = [endsOf(remoteAddress, remotePort)[table], endsOf(localAddress, localPort)[table]];
  const all = endsOf(["0.0.0.0", "::"][table], remotePort)[table];
  const found: SocketOwners = { accepted: undefined, listeners: [] };
  const ending = endingOf(remotePort);
  for (const row of rows) {
    if (!row.includes(ending)) continue;
    const [, local, remote, state, , , , uid, , inode] = row.trim().split(/ +/);
    if (local === undefined || (local !== own && local !== all)) continue;
    // A connection that no program has accepted yet has no file, and counts as one of root.
    if (state === established && local === own && remote === peer && inode !== "0") {
      found.accepted = Number(uid);
      break;
    }
    if (state === listening) found.listeners.push(Number(uid));
  }
  return found;
}

const tables = ["/proc/net/tcp", "/proc/net/tcp6"];

/** A client with an IPv6 socket that connects to an IPv4 address is listed in the second table, as is a listener on all addresses. */
function canContain({ remoteAddress, remotePort }: SocketEnds, table: number): boolean {
  return endsOf(remoteAddress, remotePort)[table] !== undefined;
}

/** Yields the rows of a table as they are read: what is left unread costs nothing. */
function* rowsOf(file: string): Generator<string> {
  let descriptor: number | undefined;
  try {
    descriptor = openSync(file, "r");
    const buffer = Buffer.alloc(pageBytes);
    let rest = "";
    for (;;) {
      const size = readSync(descriptor, buffer);
      if (size === 0) return;
      const rows = (rest + buffer.toString("latin1", 0, size)).split("\n");
      rest = rows.pop() ?? "";
      yield* rows;
    }
  } catch {
    // This system has no such table.
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}

/** The kernel fills at most one page by each reading. */
const pageBytes = 4_096;

/** The other end of a connection. */
export interface Peer {
  /** True if it is on this machine. */
  readonly isLocal: boolean;
  /** The user of the operating system that owns it; see `peerUid`. */
  readonly uid: number | undefined;
}

/** Returns the other end of a connection. A local one may hide its user, by closing its end before this is called. */
export async function peerOf(socket: SocketEnds): Promise<Peer> {
  const ends = endsNow(socket);
  const uid = await peerUid(ends);
  return { isLocal: uid !== undefined || isLocalEnd(ends), uid };
}

/** Reads the ends of a socket before anything waits: that of an HTTP/2 stream forgets them once the stream has ended. */
function endsNow(socket: SocketEnds): SocketEnds {
  const { localAddress, localPort, remoteAddress, remotePort } = socket;
  return { localAddress, localPort, remoteAddress, remotePort };
}

function isLocalEnd({ localAddress, remoteAddress = "" }: SocketEnds): boolean {
  const address = addressOf(remoteAddress);
  if (address === undefined) return false;
  return remoteAddress === localAddress || address.v4?.[0] === 127 || address.v6.equals(loopback6);
}

/** Returns an address and port as the table of IPv4 and that of IPv6 write it; undefined for a table that cannot contain it. */
function endsOf(text: string | undefined, port: number | undefined): (string | undefined)[] {
  const address = text === undefined ? undefined : addressOf(text);
  if (address === undefined || port === undefined) return [];
  const ending = endingOf(port);
  return [address.v4 && hexOf(address.v4) + ending, hexOf(address.v6) + ending];
}

const endingOf = (port = 0) => `:${port.toString(16).toUpperCase().padStart(4, "0")}`;

/** Reads an address as that of IPv4, also if it is mapped into IPv6, and as that of IPv6; undefined for other texts. */
function addressOf(text: string): { v4: Buffer | undefined; v6: Buffer } | undefined {
  if (!isIPv4(text) && !isIPv6(text)) return undefined;
  // A zone names an interface of this machine.
  const [head = [], tail = []] = (isIPv4(text) ? `::ffff:${text}` : text.replace(/%.*/, "")).split("::").map(bytesOf);
  const v6 = Buffer.from([...head, ...new Uint8Array(16 - head.length - tail.length), ...tail]);
  return { v4: v6.subarray(0, 12).equals(mappedPrefix) ? v6.subarray(12) : undefined, v6 };
}

/** Returns the bytes of one side of the `::` of an address; the last word may be an address of IPv4. */
function bytesOf(side: string): number[] {
  if (side === "") return [];
  const wordOf = (word: string) => [Number.parseInt(word, 16) >> 8, Number.parseInt(word, 16) & 255];
  return side.split(":").flatMap((word) => (word.includes(".") ? word.split(".").map(Number) : wordOf(word)));
}

const loopback6 = Buffer.from([...new Uint8Array(15), 1]);
const mappedPrefix = Buffer.from([...new Uint8Array(10), 255, 255]);

/** Writes an address as the kernel does: in words of four bytes, each as a little-endian number. */
function hexOf(bytes: Buffer): string {
  return Buffer.from(bytes).swap32().toString("hex").toUpperCase();
}

/** States of a socket: a connection that neither end has closed; a listener. */
const established = "01";
const listening = "0A";
