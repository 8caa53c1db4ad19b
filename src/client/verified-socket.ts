import { connect as connectTcp, isIP, type Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { serverUids } from "../core/peer-uid.ts";

/** Proof that the other end of a connection is the service, and not a program that took its port. */
export interface PeerProof {
  /** The user of the operating system that owns the service's socket on this machine. */
  uid?: number | undefined;
  /** The SHA-256 of the service's certificate: 64 hexadecimal digits, with or without colons. */
  certificate?: string | undefined;
}

/** PEM texts: the authority that signed the server's certificate, and a client certificate. */
export interface Certificates {
  ca?: string;
  cert?: string;
  key?: string;
}

/** The other end is not the service that was recorded, or cannot be verified. */
export class PeerError extends Error {
  override name = "PeerError";
}

/** No program answers at the address of the service. */
export class ServiceAwayError extends PeerError {
  override name = "ServiceAwayError";
}

/** Opens a connection for a protocol and verifies its other end. Nothing is sent before, except for the handshake of TLS. */
export async function openVerifiedSocket(
  url: string,
  proof: PeerProof,
  certificates: Certificates,
  protocolId: "h2" | "http/1.1" = "h2",
): Promise<Socket | TLSSocket> {
  const { protocol, hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, "");
  if (protocol === "https:") {
    // Most services verified here are local: they do without the module.
    const tls = await import("node:tls");
    const target = { host, port: Number(port || 443), ...certificates };
    // Without a negotiated protocol servers speak HTTP/1.1, and one that knows only others fails by its certificate first.
    const negotiated = protocolId === "h2" ? { ALPNProtocols: [protocolId] } : {};
    return checkCertificate(
      tls.connect({ ...target, ...negotiated, ...serverNameOf(host), ...trustOf(proof) }),
      url,
      proof,
    );
  }
  const socket = connectTcp({ host, port: Number(port || 80) });
  await whenConnected(socket, "connect", url);
  try {
    await checkOwner(socket, url, proof.uid);
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

/** Resolves when the socket is open; otherwise no service answers there. */
export async function whenConnected(socket: Socket, event: "connect" | "secureConnect", url: string): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const timer = setTimeout(reject, connectMs, new Error("no answer"));
  try {
    socket.once(event, resolve).once("error", reject);
    await promise;
    socket.off("error", reject);
  } catch (cause) {
    socket.destroy();
    const code = cause instanceof Error && "code" in cause ? String(cause.code) : "no answer";
    throw new ServiceAwayError(`no service answers at ${url} (${code}); start it with \`toolgate serve\``, { cause });
  } finally {
    clearTimeout(timer);
  }
}

/** Checks that the other end of this connection belongs to the user, and that no other one listens there but root, for a socket unit. */
async function checkOwner(socket: Socket, url: string, uid: number | undefined): Promise<void> {
  if (uid === undefined)
    throw new PeerError(`${url} cannot be verified: no user is recorded for it; run \`toolgate connect\` again`);
  const { accepted, listeners } = await serverUids(socket);
  const owners = new Set([...listeners.filter((owner) => owner !== 0), accepted ?? unknownUid]);
  if (listeners.length > 0 && owners.size === 1 && owners.has(uid)) return;
  if (accepted === undefined && listeners.length > 0 && listeners.every((owner) => owner === 0))
    throw new ServiceAwayError(
      `no service answers at ${url}, whose port systemd holds; start it: systemctl start toolgate`,
    );
  if (accepted === undefined && (listeners.length === 0 || socket.destroyed))
    throw new ServiceAwayError(
      `the program at ${url} cannot be verified: it ended, or its socket is not one of this machine; start it with \`toolgate serve\``,
    );
  const found = [...owners].map((owner) => (owner === unknownUid ? "unknown" : owner)).join(", ");
  throw new PeerError(
    `the program at ${url} is not the recorded service: its user is ${found}, but ${uid} is recorded. Start the service, or run \`toolgate connect\` again if it moved`,
  );
}

/** Checks the certificate of a connection that is being made; one that is recorded needs no authority. */
async function checkCertificate(socket: TLSSocket, url: string, { certificate }: PeerProof): Promise<TLSSocket> {
  await whenConnected(socket, "secureConnect", url);
  const actual = socket.getPeerCertificate().fingerprint256 ?? "";
  if (certificate === undefined || digitsOf(actual) === digitsOf(certificate)) return socket;
  socket.destroy();
  throw new PeerError(
    `the program at ${url} is not the recorded service: its certificate has the SHA-256 ${actual || "(none)"}; run \`toolgate connect\` again if the certificate was renewed`,
  );
}

const serverNameOf = (host: string) => (isIP(host) === 0 ? { servername: host } : {});
const trustOf = ({ certificate }: PeerProof) => ({ rejectUnauthorized: certificate === undefined });

function digitsOf(fingerprint: string): string {
  return fingerprint.replaceAll(":", "").toLowerCase();
}

const unknownUid = -1;
const connectMs = 10_000;
