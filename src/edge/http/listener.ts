import {
  createServer as createHttp1,
  type IncomingMessage,
  METHODS,
  type RequestListener,
  type ServerResponse,
} from "node:http";
import {
  constants,
  createServer as createHttp2,
  type Http2Server,
  type Http2ServerRequest,
  type Http2ServerResponse,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import { createServer as createHttps } from "node:https";
import type { Server, Socket } from "node:net";
import type { Config, ListenAddress, Tls } from "../../config/config.ts";
import type { Logger } from "../../core/logger.ts";
import { createRepeatedFailure } from "../../core/repeated-failure.ts";
import type { ConnectionCaps } from "./connection-caps.ts";
import type { Handler } from "./handler.ts";
import { type ConnectionTimes, http1Limits, http2Limits, refusedStreamMs, tlsOptions } from "./socket-limits.ts";

/** A server that accepts connections. */
export interface Listener {
  /** Address of the server, such as `http://127.0.0.1:7420`. */
  readonly url: string;
  /** Reports from now on that the replica is not ready. Requests are still served, so that approvers can answer while calls end. */
  drain(): void;
  /**
   * Closes: streams end with DRAINING, and connections close as they become idle; after `cutMs` the remaining ones are cut.
   * Resolves when every connection is closed.
   */
  close(cutMs: number): Promise<void>;
}

/** Options of a listener. */
export interface ListenerOptions extends ConnectionTimes {
  config: Pick<Config, "listen" | "tls">;
  /** Caps on open connections. */
  caps: Pick<ConnectionCaps, "admit">;
  handler: Handler;
  /** Called when the listener begins to drain; it may be called again. */
  onDrain: () => void;
  /** Called when the listener begins to close. */
  onClose: () => void;
  log: Logger;
}

/** Listens on one port, over HTTP/1.1 and HTTP/2, in clear or with TLS. */
export async function createListener({
  config,
  handler,
  onDrain,
  onClose,
  log,
  ...options
}: ListenerOptions): Promise<Listener> {
  const { listen, tls } = config;
  const { host } = listen;
  const sockets = createSockets(handler, { ...options, tls, log });
  const scheme = tls === undefined ? "http" : "https";
  const port = await sockets.listen(listen);
  return {
    url: `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`,
    drain: onDrain,
    async close(cutMs) {
      onDrain();
      onClose();
      const cut = await sockets.close(cutMs);
      if (cut > 0) log.warn("connections were cut at the end of the drain", { count: cut });
    },
  };
}

/** One port for HTTP/1.1 and HTTP/2, in clear or with TLS. */
interface Sockets {
  /** Resolves to the port, once connections are accepted. */
  listen(address: ListenAddress): Promise<number>;
  /**
   * Accepts no more connections, sends GOAWAY to HTTP/2 clients, and ends each connection with its last response; after
   * `cutMs` it cuts the remaining connections. Resolves to their number when all are closed.
   */
  close(cutMs: number): Promise<number>;
}

/** Connections of a port, and its two servers. */
interface Port {
  readonly http1: Server;
  readonly http2: Http2Server;
  readonly connections: Map<Socket, Connection>;
  /** Connections in their TLS handshake, by remote address and port. */
  readonly handshakes: Map<string, Socket>;
  isClosing: boolean;
}

/** An open connection. */
interface Connection {
  /** Number of HTTP/1.1 responses that are not finished. */
  responseCount: number;
  session?: ServerHttp2Session;
  streams: Set<ServerHttp2Stream>;
}

/** Creates the sockets, with TLS if it is given. */
function createSockets(
  handler: Handler,
  {
    tls,
    caps,
    log,
    ...times
  }: ConnectionTimes & { tls: Tls | undefined; caps: Pick<ConnectionCaps, "admit">; log: Logger },
): Sockets {
  const port: Port = {
    http1: createListeningServer(times, tls, (request, response) => {
      trackResponse(port, request, response);
      handler(request, response);
    }),
    http2: createHttp2(http2Limits, (request, response) => {
      endRefusedStream(request, response);
      handler(request, response);
    }),
    connections: new Map(),
    handshakes: new Map(),
    isClosing: false,
  };
  acceptConnections(port, { times, opened: tls === undefined ? "connection" : "secureConnection" });
  if (tls !== undefined) trackHandshakes(port);
  refuseConnections(port, caps);
  const { failed } = createRepeatedFailure<Error>((error, count) =>
    log.error("connections could not be accepted", { error, count }),
  );
  return { listen: (address) => listen(port, address, failed), close: (cutMs) => drain(port, cutMs) };
}

/** Counts an HTTP/1.1 response, and closes its connection after the last response of a drain. */
function trackResponse(port: Port, request: IncomingMessage, response: ServerResponse): void {
  const connection = port.connections.get(request.socket);
  if (connection !== undefined) connection.responseCount += 1;
  // A refused request is read to its end: the next request on the connection would wait behind the unread rest.
  response.once("finish", () => request.resume());
  response.once("close", () => {
    if (connection === undefined) return;
    connection.responseCount -= 1;
    if (port.isClosing && connection.responseCount === 0) request.socket.destroySoon();
  });
}

/**
 * Closes an HTTP/2 stream after its response: a client whose request is refused may never end it. The stream stays open until
 * more of the request arrives, or for `refusedStreamMs`, so that the frames that are on their way are still checked.
 */
function endRefusedStream(request: Http2ServerRequest, { stream }: Http2ServerResponse): void {
  stream.once("wantTrailers", () => {
    if (request.complete) return;
    const close = () => inTwoTurns(() => stream.close(constants.NGHTTP2_NO_ERROR));
    const timer = setTimeout(close, refusedStreamMs);
    stream.once("close", () => clearTimeout(timer));
    request.once("data", close).resume();
  });
}

/**
 * Passes each new connection to the server for its version of HTTP. The HTTP/1.1 server listens, since it times out slow headers
 * only on sockets that it accepted itself.
 */
function acceptConnections(port: Port, { times, opened }: { times: ConnectionTimes; opened: string }): void {
  const { http1, connections, handshakes } = port;
  const [serveHttp1] = http1.listeners(opened);
  http1.removeAllListeners(opened);
  http1.on(opened, (socket: Socket) => {
    const connection: Connection = { responseCount: 0, streams: new Set() };
    connections.set(socket, connection);
    handshakes.delete(remoteEnd(socket));
    socket.once("close", () => connections.delete(socket));
    // Neither server handles errors before the version is detected.
    socket.on("error", () => undefined);
    detectHttpVersion(socket, times, (isHttp2) => {
      if (isHttp2) return serveHttp2(port, socket, connection, times);
      serveHttp1?.call(http1, socket);
      if (opened === "secureConnection") readByEvents(socket);
    });
  });
}

/**
 * Has Node read an HTTP/1.1 connection with TLS by events. Its parser reads the connection directly otherwise: a request of two TLS
 * records that arrives before the response to the last one is written pauses the parser at the first record, and the second one
 * then destroys the connection (HPE_PAUSED). Any listener of data turns that off; it waits for the turn after the detection of the
 * version, which resumes the connection even if the parser is paused.
 */
function readByEvents(socket: Socket): void {
  setImmediate(() => socket.on("data", () => undefined));
}

/** Closes each connection over a cap before anything else serves it. */
function refuseConnections({ http1 }: Port, caps: Pick<ConnectionCaps, "admit">): void {
  const serving = http1.listeners("connection");
  http1.removeAllListeners("connection");
  http1.on("connection", (socket) => {
    if (!caps.admit(socket)) return socket.destroy();
    for (const serve of serving) serve.call(http1, socket);
  });
}

/** Passes a connection to the HTTP/2 server and tracks its session and streams. */
function serveHttp2(port: Port, socket: Socket, connection: Connection, { http2IdleMs }: ConnectionTimes): void {
  const { http2 } = port;
  // Closes both directions when an HTTP/2 client ends its own; sockets of an HTTP/1.1 server stay half open by default.
  socket.allowHalfOpen = false;
  const track = (session: ServerHttp2Session) => {
    connection.session = session;
    session.setTimeout(http2IdleMs, () => session.close());
    session.once("close", () => socket.destroySoon());
    session.on("stream", (stream) => {
      connection.streams.add(stream);
      stream.once("close", () => {
        connection.streams.delete(stream);
        if (port.isClosing) endWithoutStreams(socket, connection);
      });
    });
  };
  http2.once("session", track);
  http2.emit("connection", socket);
  // No session starts if the TLS handshake did not agree on HTTP/2.
  http2.off("session", track);
  if (port.isClosing) closeSession(socket, connection);
}

/** Sends GOAWAY, and ends the connection after its last stream. */
function closeSession(socket: Socket, connection: Connection): void {
  connection.session?.close();
  endWithoutStreams(socket, connection);
}

/** Ends a connection of a drain that has no more streams. Its client would not close it while it leaves a response unread. */
function endWithoutStreams(socket: Socket, { streams }: Connection): void {
  if (streams.size === 0) setTimeout(() => socket.destroySoon(), clientCloseMs).unref();
}

/** Tracks TLS handshakes. A TLS server emits two events for a connection: at its start and after its handshake. */
function trackHandshakes({ http1, handshakes }: Port): void {
  http1.on("connection", (socket) => {
    const end = remoteEnd(socket);
    handshakes.set(end, socket);
    socket.once("close", () => handshakes.delete(end));
  });
}

/** Listens; `failed` is called for a connection that cannot be accepted, after which the next one may be. */
function listen(
  { http1 }: Port,
  { host, port, descriptor }: ListenAddress,
  failed: (error: Error) => void,
): Promise<number> {
  return new Promise((resolve, reject) => {
    http1.once("error", reject);
    http1.listen(descriptor === undefined ? { host, port } : { fd: descriptor }, () => {
      http1.off("error", reject);
      http1.on("error", failed);
      const address = http1.address();
      const found = typeof address === "object" && address !== null ? address.port : port;
      if (port === 0 || found === port) return resolve(found);
      http1.close();
      reject(
        new Error(
          `the socket unit listens on port ${found}, but \`listen\` names port ${port}: write the same into both (ListenStream in toolgate.socket)`,
        ),
      );
    });
  });
}

/** Closes the port and resolves to the number of connections that were cut after `cutMs`. */
function drain(port: Port, cutMs: number): Promise<number> {
  const { http1, connections, handshakes } = port;
  return new Promise((resolve) => {
    let cut = 0;
    const timer = setTimeout(() => {
      cut = connections.size;
      for (const [socket, connection] of connections) cutOff(socket, connection);
    }, cutMs);
    port.isClosing = true;
    http1.close(() => {
      clearTimeout(timer);
      resolve(cut);
    });
    for (const socket of handshakes.values()) socket.destroy();
    for (const [socket, connection] of connections) {
      const { session, responseCount } = connection;
      if (session !== undefined) closeSession(socket, connection);
      else if (responseCount === 0) socket.destroySoon();
    }
  });
}

/** Creates the server that listens: HTTP/1.1, in clear or with TLS. */
function createListeningServer(times: ConnectionTimes, tls: Tls | undefined, listener: RequestListener): Server {
  const limits = http1Limits(times);
  const server =
    tls === undefined
      ? createHttp1(limits, listener)
      : createHttps({ ...limits, ...tlsOptions(tls, times.headersMs) }, listener);
  server.maxHeadersCount = 100;
  return server;
}

/** Identifies a connection: the outer and the inner socket of a TLS connection share it. */
const remoteEnd = ({ remoteAddress, remotePort }: Socket) => `${remoteAddress} ${remotePort}`;

/** Resets each stream before it closes the connection: some clients hang if a draining connection just drops. */
function cutOff(socket: Socket, { streams }: Connection): void {
  for (const stream of streams) stream.close(constants.NGHTTP2_CANCEL);
  inTwoTurns(() => socket.destroy());
}

/** Time in which a client closes its side of a connection that drains. */
const clientCloseMs = 100;

/** Node sends trailers and resets in the next turn of the event loop, so they are sent in the turn after that. */
const inTwoTurns = (then: () => void) => setImmediate(() => setImmediate(then));

/**
 * Detects the version of HTTP by the first bytes of a connection, which stay unread: HTTP/2 begins with its preface, HTTP/1.1
 * with a method. A connection that begins with anything else is cut, as is one that does not send either of them whole within
 * `headersMs` of its first byte. One that sends nothing is idle, and is cut after `idleMs`: clients open connections in advance,
 * and a request that is sent while its connection is being cut is lost.
 */
function detectHttpVersion(
  socket: Socket,
  { idleMs, headersMs }: { idleMs: number; headersMs: number },
  onDetected: (isHttp2: boolean) => void,
): void {
  let head = Buffer.alloc(0);
  const cut = () => socket.destroy();
  let timer = setTimeout(cut, idleMs);
  const stop = () => {
    clearTimeout(timer);
    socket.off("end", cut).off("close", stop).off("readable", look);
  };
  const look = () => {
    const chunk: Buffer | null = socket.read();
    if (chunk === null) return;
    if (head.length === 0) {
      clearTimeout(timer);
      timer = setTimeout(cut, headersMs);
    }
    head = Buffer.concat([head, chunk]);
    const version = versionOf(head.toString("latin1", 0, preface.length + 2));
    if (version === "undecided") return;
    stop();
    if (version === "none") return cut();
    socket.unshift(head);
    onDetected(version === "2");
  };
  socket.on("end", cut).on("close", stop).on("readable", look);
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const methods = METHODS.map((method) => `${method} `);

function versionOf(text: string): "1.1" | "2" | "none" | "undecided" {
  if (text.startsWith(preface)) return "2";
  // A client may send an empty line before its request.
  const begin = text.replace(/^\r?\n?/, "");
  if (methods.some((method) => begin.startsWith(method))) return "1.1";
  if (preface.startsWith(text)) return "undecided";
  return methods.some((method) => method.startsWith(begin)) ? "undecided" : "none";
}
