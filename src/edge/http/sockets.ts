import {
  createServer as createHttp1,
  type IncomingMessage,
  type RequestListener,
  type ServerResponse,
} from "node:http";
import {
  constants,
  createServer as createHttp2,
  type Http2ServerRequest,
  type Http2ServerResponse,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import { createServer as createHttps } from "node:https";
import type { Server, Socket } from "node:net";
import type { Tls } from "../../config/config.ts";

export type Request = IncomingMessage | Http2ServerRequest;
export type Response = ServerResponse | Http2ServerResponse;
export type Handler = (request: Request, response: Response) => void;

/** One port for HTTP/1.1 and HTTP/2, in clear or with TLS. */
export interface Sockets {
  /** Resolves to the port, once connections are accepted. */
  listen(host: string, port: number): Promise<number>;
  /**
   * Accepts nothing more, tells HTTP/2 clients to go away, and ends each connection with its last response; after
   * `drainMs` what is left is cut. Resolves, when all are closed, to how many had to be cut.
   */
  close(drainMs: number): Promise<number>;
}

/** What is known of an open connection. */
interface Connection {
  /** HTTP/1.1 responses that are not finished. */
  responses: number;
  session?: ServerHttp2Session;
  streams: Set<ServerHttp2Stream>;
}

/** Creates the sockets, which speak TLS if it is given; a client has `headersMs` to say what it wants. */
export function createSockets(
  handler: Handler,
  { headersMs, tls }: { headersMs: number; tls: Tls | undefined },
): Sockets {
  const connections = new Map<Socket, Connection>();
  /** Connections whose TLS handshake is not over, by their other end. */
  const handshakes = new Map<string, Socket>();
  let closing = false;

  const http1 = createListening(headersMs, tls, (request, response) => {
    const connection = connections.get(request.socket);
    if (connection !== undefined) connection.responses += 1;
    // A request that is refused in the middle is read to its end, or the connection's next one would wait behind its rest.
    response.once("finish", () => request.resume());
    response.once("close", () => {
      if (connection === undefined) return;
      connection.responses -= 1;
      if (closing && connection.responses === 0) request.socket.destroySoon();
    });
    handler(request, response);
  });

  const http2 = createHttp2(http2Limits, (request, response) => {
    const { stream } = response;
    // A client that is refused in the middle of its request may never end it, and the stream would stay for ever.
    stream.once("wantTrailers", () => {
      if (!request.complete) inTwoTurns(() => stream.close(constants.NGHTTP2_NO_ERROR));
    });
    handler(request, response);
  });

  const serveHttp2 = (socket: Socket, connection: Connection) => {
    // A client of HTTP/2 that says no more is gone, also if it has not taken all; sockets of an HTTP/1.1 server stay half open.
    socket.allowHalfOpen = false;
    const keep = (session: ServerHttp2Session) => {
      connection.session = session;
      session.setTimeout(idleMs, () => session.close());
      session.once("close", () => socket.destroySoon());
      session.on("stream", (stream) => {
        connection.streams.add(stream);
        stream.once("close", () => connection.streams.delete(stream));
      });
    };
    http2.once("session", keep);
    http2.emit("connection", socket);
    // No session begins if the TLS handshake did not agree on HTTP/2.
    http2.off("session", keep);
    if (closing) connection.session?.close();
  };

  // The HTTP/1.1 server is the one that listens: it watches over slow headers only on sockets that it accepted itself.
  const opened = tls === undefined ? "connection" : "secureConnection";
  const [serveHttp1] = http1.listeners(opened);
  http1.removeAllListeners(opened);
  http1.on(opened, (socket: Socket) => {
    const connection: Connection = { responses: 0, streams: new Set() };
    connections.set(socket, connection);
    handshakes.delete(otherEnd(socket));
    socket.once("close", () => connections.delete(socket));
    // A connection may break while neither server looks after it.
    socket.on("error", () => undefined);
    firstBytes(socket, headersMs, (isHttp2) => {
      if (isHttp2) serveHttp2(socket, connection);
      else serveHttp1?.call(http1, socket);
    });
  });
  // A TLS server tells of a connection twice: when it begins, and when its handshake is over.
  if (tls !== undefined) {
    http1.on("connection", (socket) => {
      const end = otherEnd(socket);
      handshakes.set(end, socket);
      socket.once("close", () => handshakes.delete(end));
    });
  }

  return {
    listen: (host, port) =>
      new Promise((resolve, reject) => {
        http1.once("error", reject);
        http1.listen(port, host, () => {
          http1.off("error", reject);
          const address = http1.address();
          resolve(typeof address === "object" && address !== null ? address.port : port);
        });
      }),
    close: (drainMs) =>
      new Promise((resolve) => {
        let cut = 0;
        const timer = setTimeout(() => {
          cut = connections.size;
          for (const [socket, connection] of connections) cutOff(socket, connection);
        }, drainMs);
        closing = true;
        http1.close(() => {
          clearTimeout(timer);
          resolve(cut);
        });
        for (const socket of handshakes.values()) socket.destroy();
        for (const [socket, { session, responses }] of connections) {
          if (session !== undefined) session.close();
          else if (responses === 0) socket.destroySoon();
        }
      }),
  };
}

/** The server that listens: for HTTP/1.1, in clear or with TLS. */
function createListening(headersMs: number, tls: Tls | undefined, listener: RequestListener): Server {
  const limits = http1Limits(headersMs);
  const server =
    tls === undefined ? createHttp1(limits, listener) : createHttps({ ...limits, ...inTls(tls, headersMs) }, listener);
  server.maxHeadersCount = 100;
  return server;
}

/** What both sockets of a TLS connection, the outer and the inner one, have in common and no other connection has. */
const otherEnd = ({ remoteAddress, remotePort }: Socket) => `${remoteAddress} ${remotePort}`;

/** Some clients wait for ever if a connection that was told to go away just ends: each stream is told first. */
function cutOff(socket: Socket, { streams }: Connection): void {
  for (const stream of streams) stream.close(constants.NGHTTP2_CANCEL);
  inTwoTurns(() => socket.destroy());
}

/** Node sends trailers and resets in the next turn, so they are out in the one after that. */
const inTwoTurns = (then: () => void) => setImmediate(() => setImmediate(then));

/** An HTTP/2 connection without any traffic for so long is told to go away. */
const idleMs = 120_000;

const inTls = ({ cert, key, clientCa }: Tls, headersMs: number) => ({
  cert,
  key,
  ...(clientCa !== undefined && { ca: clientCa }),
  requestCert: clientCa !== undefined,
  rejectUnauthorized: clientCa !== undefined,
  minVersion: "TLSv1.2" as const,
  ALPNProtocols: ["h2", "http/1.1"],
  handshakeTimeout: headersMs,
});

const http1Limits = (headersMs: number) => ({
  headersTimeout: headersMs,
  /** For the request; responses may stream as long as they like. */
  requestTimeout: Math.max(60_000, headersMs),
  keepAliveTimeout: 5_000,
  connectionsCheckingInterval: Math.min(5_000, headersMs),
  maxHeaderSize: 16_384,
  /** Finds out about peers that vanished without a word. */
  keepAlive: true,
  keepAliveInitialDelay: 30_000,
});

const http2Limits = {
  settings: { maxConcurrentStreams: 100, maxHeaderListSize: 16_384, initialWindowSize: 65_535, enablePush: false },
  maxSessionMemory: 10,
  maxSessionInvalidFrames: 100,
  maxSessionRejectedStreams: 50,
  maxSettings: 16,
  streamResetBurst: 200,
  streamResetRate: 33,
};

/** Looks at how a connection begins, without taking anything from it: HTTP/2 begins with `PRI`. */
function firstBytes(socket: Socket, timeoutMs: number, decided: (isHttp2: boolean) => void): void {
  let head = Buffer.alloc(0);
  const cut = () => socket.destroy();
  const timer = setTimeout(cut, timeoutMs);
  const stop = () => {
    clearTimeout(timer);
    socket.off("end", cut).off("close", stop).off("readable", look);
  };
  const look = () => {
    const chunk: Buffer | null = socket.read();
    if (chunk === null) return;
    head = Buffer.concat([head, chunk]);
    const begin = head.toString("latin1", 0, 3);
    if (begin.length < 3 && "PRI".startsWith(begin)) return;
    stop();
    socket.unshift(head);
    decided(begin === "PRI");
  };
  socket.on("end", cut).on("close", stop).on("readable", look);
}
