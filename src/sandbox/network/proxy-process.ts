import { type LookupAddress, lookup } from "node:dns";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import { connect, isIP, type LookupFunction, Server, type Socket } from "node:net";
import {
  type FromProxy,
  type HostPort,
  type RequestTarget,
  requestTarget,
  type ToProxy,
  type Traffic,
  tunnelTarget,
} from "./target.ts";

// Child process of `startProxy`: it has no environment and no secrets, and ends with the service.
const networks = new Map<number, NetworkProxy>();
const forwards = new Map<number, Server[]>();
const questions = new Map<number, (refusal: string | undefined) => void>();
let lastQuestion = 0;

const send = (message: FromProxy) => process.send?.(message);

/** Requests of one network that may wait for a decision: the service keeps each until then. */
const maxOpenQuestions = 256;

function networkOf(network: number): NetworkProxy {
  const known = networks.get(network);
  if (known !== undefined) return known;
  let open = 0;
  const proxy = createProxy(async (url, addresses) => {
    if (open >= maxOpenQuestions)
      throw new Refusal(`${maxOpenQuestions} requests wait for a decision: try again later`);
    open += 1;
    lastQuestion += 1;
    const question = lastQuestion;
    const { promise, resolve } = Promise.withResolvers<string | undefined>();
    questions.set(question, resolve);
    send({ case: "judge", network, question, url, ...(addresses && { addresses }) });
    const refusal = await promise;
    open -= 1;
    if (refusal !== undefined) throw new Refusal(refusal);
  });
  networks.set(network, proxy);
  return proxy;
}

process.on("message", (message: ToProxy, handle: unknown) => {
  switch (message.case) {
    case "open":
      if (!(handle instanceof Server)) return;
      if (message.forward) {
        forwardTo(message.forward, handle);
        forwards.set(message.network, [...(forwards.get(message.network) ?? []), handle]);
      } else networkOf(message.network).serve(handle);
      send({ case: "opened", network: message.network });
      return;
    case "close":
      networks.get(message.network)?.close();
      networks.delete(message.network);
      for (const server of forwards.get(message.network) ?? []) server.close();
      forwards.delete(message.network);
      return;
    case "answer":
      questions.get(message.question)?.(message.refusal);
      questions.delete(message.question);
      return;
    case "collect":
      send({ case: "collected", network: message.network, traffic: networkOf(message.network).collect() });
  }
});
process.once("disconnect", () => process.exit());
// Ctrl-C reaches the whole group; the service ends this process when it has drained.
process.on("SIGINT", () => {}).on("SIGTERM", () => {});

/** Decides on requests: throws the refusal. With `addresses` it judges the IP addresses to which the name leads. */
type JudgeRequest = (url: string, addresses?: readonly string[]) => Promise<void>;

/** Proxy of one network. */
interface NetworkProxy {
  /** Serves the connections of a listening socket. */
  serve(server: Server): void;
  /** Returns the traffic since the last time. */
  collect(): Traffic[];
  close(): void;
}

/** Creates a proxy for HTTP, and for tunnels by CONNECT. It connects to nothing before the name and its addresses are judged. */
function createProxy(judge: JudgeRequest): NetworkProxy {
  const counts = createCounts();
  const sockets = new Set<Socket>();
  const servers: Server[] = [];
  const proxy = createServer({ keepAliveTimeout: 5_000 }, (incoming, response) => {
    void forwardRequest(incoming, response, judge, counts).catch((error: unknown) => {
      if (response.headersSent) return response.destroy();
      const { status, text } = failure(error);
      response.writeHead(status, { "content-type": "text/plain", connection: "close" }).end(text);
    });
  });
  // A refused request has not been read to its end.
  proxy.maxRequestsPerSocket = 1_000;
  proxy.on("connect", (incoming: IncomingMessage, socket: Socket, head: Buffer) => {
    void openTunnel(incoming, socket, head, judge, counts).catch((error: unknown) => {
      const { status, text } = failure(error);
      const length = `content-type: text/plain\r\ncontent-length: ${Buffer.byteLength(text)}\r\nconnection: close`;
      socket.end(`HTTP/1.1 ${status} Refused\r\n${length}\r\n\r\n${text}`);
    });
  });
  return {
    serve(server) {
      servers.push(server);
      server.on("connection", (socket: Socket) => {
        // This process serves all sessions, and its descriptors are theirs together.
        if (sockets.size >= maxConnections) return socket.destroy();
        sockets.add(socket);
        socket.on("error", () => socket.destroy()).once("close", () => sockets.delete(socket));
        proxy.emit("connection", socket);
      });
    },
    collect: counts.take,
    close() {
      for (const server of servers) server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

/** Pipes each connection of a listening socket to one address. */
function forwardTo({ host, port }: HostPort, server: Server): void {
  server.on("connection", (socket: Socket) => pipeBoth(socket, connect(port, host)));
}

/** Refusal of a request, in words for the program that sent it. */
class Refusal extends Error {}

function failure(error: unknown): { status: number; text: string } {
  if (error instanceof Refusal) return { status: 403, text: `toolgate: ${error.message}\n` };
  return { status: 502, text: `toolgate: cannot connect: ${error instanceof Error ? error.message : String(error)}\n` };
}

async function openTunnel(
  { url }: IncomingMessage,
  socket: Socket,
  head: Buffer,
  judge: JudgeRequest,
  counts: Counts,
): Promise<void> {
  const target = tunnelTarget(url);
  if (target === undefined) throw new Refusal(`${JSON.stringify(url)} is not a host and a port`);
  const upstream = await dial(target, judge);
  if (socket.destroyed) return void upstream.destroy();
  socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
  upstream.write(head);
  counts.add(target, upstream);
  pipeBoth(socket, upstream);
}

async function forwardRequest(
  incoming: IncomingMessage,
  response: ServerResponse,
  judge: JudgeRequest,
  counts: Counts,
): Promise<void> {
  const target = requestTarget(incoming.url);
  if (target === undefined) throw new Refusal("this is a proxy: request http://HOST/PATH, or CONNECT HOST:PORT");
  const upstream = await dial(target, judge);
  if (response.destroyed) return void upstream.destroy();
  counts.add(target, upstream);
  const { pathname, search, host } = new URL(target.url);
  const outgoing = request({
    createConnection: () => upstream,
    path: pathname + search,
    method: incoming.method ?? "GET",
    // The host that was judged, whatever the program wrote.
    headers: { ...endToEnd(incoming.headers), host, connection: "close" },
  });
  const { promise: answered, resolve, reject } = Promise.withResolvers<void>();
  outgoing
    .once("error", reject)
    .once("close", () => reject(new Error("the server did not answer")))
    .once("response", (answer) => {
      answer.once("error", () => response.destroy());
      try {
        // It throws for a status that is none, such as 099.
        response.writeHead(answer.statusCode ?? 502, endToEnd(answer.headers));
        answer.pipe(response);
        resolve();
      } catch (error) {
        reject(error);
        upstream.destroy();
      }
    });
  response.once("close", () => upstream.destroy());
  incoming.pipe(outgoing);
  await answered;
}

/** Headers that concern one connection only. */
const hopByHop = new Set(
  "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split(
    " ",
  ),
);

function endToEnd(headers: IncomingMessage["headers"]) {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !hopByHop.has(name)));
}

/** Connects to a target: judges its URL, resolves its name, judges the addresses, and connects to one of these. */
async function dial({ host, port, url }: RequestTarget, judge: JudgeRequest): Promise<Socket> {
  await judge(url);
  const addresses = await resolve(host);
  await judge(
    url,
    addresses.map(({ address }) => address),
  );
  const fixed: LookupFunction = (_, { all }, callback) => {
    const [first] = addresses;
    if (all || first === undefined) callback(null, addresses);
    else callback(null, first.address, first.family);
  };
  const { promise, resolve: connected, reject } = Promise.withResolvers<Socket>();
  const socket = connect({ host, port, lookup: fixed, timeout: maxConnectMs });
  socket.once("error", reject).once("timeout", () => socket.destroy(new Error(`${host} does not answer`)));
  socket.once("connect", () => connected(socket.setTimeout(0)));
  return await promise;
}

function resolve(host: string): Promise<LookupAddress[]> {
  const family = isIP(host);
  if (family !== 0) return Promise.resolve([{ address: host, family }]);
  const { promise, resolve, reject } = Promise.withResolvers<LookupAddress[]>();
  lookup(host, { all: true }, (error, addresses) => (error ? reject(error) : resolve(addresses)));
  return promise;
}

const maxConnectMs = 30_000;
/** Connections of one network to its proxy at a time. */
const maxConnections = 256;

/** Connects two sockets; the end of one ends the other. */
function pipeBoth(a: Socket, b: Socket): void {
  for (const [one, other] of [
    [a, b],
    [b, a],
  ] as const)
    one
      .on("error", () => other.destroy())
      .once("close", () => other.destroy())
      .pipe(other);
}

type Counts = ReturnType<typeof createCounts>;

/** Counts connections and bytes by host and port. */
function createCounts() {
  const open = new Map<Socket, { target: HostPort; sent: number; received: number; isNew: boolean }>();
  const closed: Traffic[] = [];
  const since = (socket: Socket): Traffic | undefined => {
    const counted = open.get(socket);
    if (counted === undefined) return undefined;
    const { target, sent, received, isNew } = counted;
    Object.assign(counted, { sent: socket.bytesWritten, received: socket.bytesRead, isNew: false });
    return {
      ...{ host: target.host, port: target.port, connections: isNew ? 1 : 0 },
      ...{ sentBytes: socket.bytesWritten - sent, receivedBytes: socket.bytesRead - received },
    };
  };
  return {
    add(target: HostPort, socket: Socket): void {
      open.set(socket, { target, sent: 0, received: 0, isNew: true });
      socket.once("close", () => {
        const last = since(socket);
        open.delete(socket);
        if (last) closed.push(last);
      });
    },
    /** Returns the sums since the last time. */
    take(): Traffic[] {
      const all = [...closed.splice(0), ...[...open.keys()].flatMap((socket) => since(socket) ?? [])];
      const byAddress = Map.groupBy(all, ({ host, port }) => `${host} ${port}`);
      return [...byAddress.values()].flatMap((each) =>
        each.slice(0, 1).map((first) => each.slice(1).reduce(sum, first)),
      );
    },
  };
}

function sum(a: Traffic, b: Traffic): Traffic {
  return {
    ...a,
    connections: a.connections + b.connections,
    sentBytes: a.sentBytes + b.sentBytes,
    receivedBytes: a.receivedBytes + b.receivedBytes,
  };
}
