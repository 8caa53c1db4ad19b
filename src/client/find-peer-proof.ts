import { connect as connectTcp, isIP } from "node:net";
import { connect as connectTls } from "node:tls";
import { serverUids } from "../core/peer-uid.ts";
import { isLoopback } from "./find-token.ts";
import { PeerError, type PeerProof, whenConnected } from "./verified-socket.ts";

/** Finds what proves the service at an address: over https its valid certificate, otherwise the user that listens on this machine. */
export async function findPeerProof(
  url: string,
  certificates: { ca?: string; cert?: string; key?: string },
): Promise<PeerProof> {
  const { protocol, hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, "");
  if (protocol === "https:") {
    const name = isIP(host) === 0 ? { servername: host } : {};
    const socket = connectTls({ host, port: Number(port || 443), ...name, ...certificates });
    await whenConnected(socket, "secureConnect", url);
    const certificate = socket.getPeerCertificate().fingerprint256.replaceAll(":", "").toLowerCase();
    socket.destroy();
    return { certificate };
  }
  if (!isLoopback(url))
    throw new PeerError(
      `${url} cannot be verified: it is on another machine, and without https any program could answer there; connect to an https address`,
    );
  const uid = await findServiceUid(url);
  if (uid !== undefined) return { uid };
  throw new PeerError(
    `the user of the service at ${url} cannot be seen: several users listen there, it is in another network namespace, or this system has no /proc/net; connect to an https address`,
  );
}

/** Finds the user that serves an address on this machine; undefined if it cannot be seen, or if others than root listen there, too. */
export async function findServiceUid(url: string): Promise<number | undefined> {
  if (!isLoopback(url)) return undefined;
  const { protocol, hostname, port } = new URL(url);
  const socket = connectTcp({
    host: hostname.replace(/^\[|\]$/g, ""),
    port: Number(port || (protocol === "https:" ? 443 : 80)),
  });
  await whenConnected(socket, "connect", url);
  const { accepted, listeners } = await serverUids(socket);
  socket.destroy();
  return listeners.length > 0 && listeners.every((uid) => uid === accepted || uid === 0) ? accepted : undefined;
}
