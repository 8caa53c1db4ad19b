import type { X509Certificate } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { constants, type Http2ServerRequest, type Http2ServerResponse } from "node:http2";
import { TLSSocket } from "node:tls";
import { type Peer, peerOf } from "../../core/peer-uid.ts";
import { clientLeft, notServed } from "../api/request-failure.ts";

/** A request by either version of HTTP. */
export type Request = IncomingMessage | Http2ServerRequest;

/** A response by either version of HTTP. */
export type Response = ServerResponse | Http2ServerResponse;

/** Returns true if nothing more can be sent. */
export function isBroken(response: Response): boolean {
  return "stream" in response ? response.stream.destroyed : response.destroyed;
}

/** Answers a request. */
export type Handler = (request: Request, response: Response) => void;

/** Sends the refusal of a request that reached no rpc; `httpStatus` replaces the status that follows from the error. */
export type Refuse = (error: unknown, request: Request, response: Response, httpStatus?: number) => void;

/** A place on the listener that a handler serves. */
export interface Mount {
  /** Path without query; one that ends in `/` covers everything below it, except for `/` itself, which is the root only. */
  path: string;
  /** Methods that are served; absent: all. */
  methods?: readonly string[];
  /** Serves only requests whose header accept names this media type, and leaves the others to another mount of the path. */
  accept?: string;
  /** True if the password of HTTP basic counts as the token: opencode's clients send theirs in this form. */
  takesBasic?: boolean;
  handle: Handler;
}

/**
 * Creates a handler that dispatches by path, method and media type; it refuses with 404 where nothing is mounted. Throws if two
 * mounts take the same requests: one of two doors would answer nothing, unnoticed.
 */
export function dispatch(mounts: readonly Mount[], refuse: Refuse): Handler {
  for (const [index, mount] of mounts.entries()) checkAlone(mount, mounts.slice(0, index));
  // Of the mounts of one path, those for a media type come first, since the others serve every request.
  const exact = Map.groupBy(
    mounts.toSorted((a, b) => Number(a.accept === undefined) - Number(b.accept === undefined)),
    ({ path }) => path,
  );
  const prefixes = [...exact.keys()]
    .filter((path) => path.endsWith("/") && path !== "/")
    .sort((a, b) => b.length - a.length);
  return (request, response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    const prefix = () => prefixes.find((start) => path.startsWith(start)) ?? "";
    const mount = (exact.get(path) ?? exact.get(prefix()))?.find((each) => serves(each, request));
    try {
      if (mount === undefined) throw notServed("unimplemented", `${request.method} ${path} is not served here`);
      mount.handle(request, response);
    } catch (error) {
      // An error of one door must not end the service for all.
      refuse(error, request, response, mount === undefined ? 404 : undefined);
    }
  };
}

/** Checks if a request is for the path of a mount, or below it, and by one of its methods. */
export function covers({ path, methods }: Mount, { method = "", url = "" }: Request): boolean {
  const [asked = ""] = url.split("?", 1);
  const isBelow = path.endsWith("/") && path !== "/" && asked.startsWith(path);
  return (asked === path || isBelow) && (methods?.includes(method) ?? true);
}

function serves({ methods, accept }: Mount, { method = "", headers }: Request): boolean {
  return (methods?.includes(method) ?? true) && (accept === undefined || (headers.accept?.includes(accept) ?? false));
}

/** Throws if another mount takes requests of this one. One for a media type may share methods with one for all others. */
function checkAlone({ path, methods, accept }: Mount, others: readonly Mount[]): void {
  for (const other of others) {
    if (other.path !== path || other.accept !== accept) continue;
    const shared =
      methods === undefined
        ? (other.methods ?? ["every method"])
        : methods.filter((name) => other.methods?.includes(name) ?? true);
    if (shared.length === 0) continue;
    throw new Error(
      `two doors serve ${shared.join(", ")} of ${path}, so that one is never reached; give one of the mounts other methods or another path`,
    );
  }
}

/** Sends a whole response. */
export function sendWhole(response: Response, status: number, type: string, body: string | Uint8Array): void {
  response.statusCode = status;
  response.setHeader("content-type", type);
  response.end(body);
}

/** Breaks a response off, so that the client does not take it for complete. */
export function cutResponse(response: Response): void {
  if ("stream" in response) response.stream.close(constants.NGHTTP2_CANCEL);
  else response.destroy();
}

/** Returns the signal that is aborted when the client leaves before it has the whole response. */
export function signalOfLeaving(response: Response): AbortSignal {
  const left = new AbortController();
  response.once("close", () => {
    if (!response.writableEnded) left.abort(clientLeft());
  });
  return left.signal;
}

/** Returns the other end of a request's connection. */
export type ConnectionPeer = (request: Request) => Promise<Peer>;

/**
 * Creates the lookup of a door. The other end is looked up once per connection: each lookup reads the kernel's table of all
 * sockets, which takes milliseconds.
 */
export function createConnectionPeer(): ConnectionPeer {
  const known = new WeakMap<object, Promise<Peer>>();

  async function lookUp(request: Request, connection: object): Promise<Peer> {
    const peer = await peerOf(request.socket);
    // A client on this machine whose user is not found yet may be found by its next request.
    if (peer.isLocal && peer.uid === undefined) known.delete(connection);
    return peer;
  }

  return (request) => {
    const connection = connectionOf(request);
    const peer = known.get(connection) ?? lookUp(request, connection);
    known.set(connection, peer);
    return peer;
  };
}

/** Creates the search for the certificate of a client, which TLS verified, once per connection; undefined if it has none. */
export function createClientCertificates(): (request: Request) => X509Certificate | undefined {
  const known = new WeakMap<object, X509Certificate | "none">();
  return (request) => {
    const connection = connectionOf(request);
    const certificate = known.get(connection) ?? readCertificate(request) ?? "none";
    known.set(connection, certificate);
    return certificate === "none" ? undefined : certificate;
  };
}

function readCertificate(request: Request): X509Certificate | undefined {
  const socket = ("stream" in request ? request.stream?.session?.socket : undefined) ?? request.socket;
  return socket instanceof TLSSocket && socket.authorized ? socket.getPeerX509Certificate() : undefined;
}

/** Returns the same object for all requests of a connection; each stream of HTTP/2 has a socket object to itself. */
function connectionOf(request: Request): object {
  return "stream" in request ? (request.stream?.session ?? request.socket) : request.socket;
}
