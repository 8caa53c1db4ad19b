import { once } from "node:events";
import { createServer, type NetConnectOpts, connect as open, type Socket } from "node:net";

/**
 * Mode of the connection between a replica and its Redis: `open` forwards everything; `reset` cuts every connection and
 * refuses new ones; `forget` silently stops forwarding on existing connections, but accepts new ones; the others hold
 * back data, as a network does that drops packets.
 */
export type Line = "open" | "reset" | "forget" | "nothing passes" | "no commands pass" | "no answers pass";

/** A proxy between a replica and its Redis. */
export interface Wire {
  readonly url: string;
  set(line: Line): void;
  /** Cuts the connection instead of each n-th reply, after Redis has run the command; 0: never. */
  loseAnswers(nth: number): void;
  /** Number of lost replies. */
  readonly lost: number;
  close(): Promise<void>;
}

/** Listens on a free port and forwards to the Redis at this address; `translate` changes its replies. */
export async function startWire(
  target: NetConnectOpts,
  translate: (reply: Buffer) => Buffer = (reply) => reply,
): Promise<Wire> {
  const pairs = new Set<readonly [client: Socket, redis: Socket]>();
  const forgotten = new WeakSet<Socket>();
  let line: Line = "open";
  let [every, answers, lost] = [0, 0, 0];

  const server = createServer((client) => {
    if (line === "reset") return void client.resetAndDestroy();
    const redis = open(target);
    const pair = [client, redis] as const;
    pairs.add(pair);
    for (const [socket, other] of [pair, [redis, client] as const]) {
      socket.on("error", () => other.destroy());
      socket.on("close", () => {
        pairs.delete(pair);
        other.destroy();
      });
    }
    client.on("data", (bytes) => redis.write(bytes));
    redis.on("data", (bytes) => {
      answers += 1;
      if (every === 0 || answers % every !== 0) return void client.write(translate(bytes));
      lost += 1;
      client.resetAndDestroy();
    });
    if (line !== "forget") apply(pair);
  });

  function apply([client, redis]: readonly [Socket, Socket]): void {
    if (line === "reset") client.resetAndDestroy();
    if (line === "forget") forgotten.add(client);
    const [commands, replies] = forgotten.has(client) ? passing["nothing passes"] : passing[line];
    if (commands) client.resume();
    else client.pause();
    if (replies) redis.resume();
    else redis.pause();
  }

  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  return {
    url: `redis://127.0.0.1:${typeof address === "object" ? address?.port : ""}`,
    set(to) {
      line = to;
      for (const pair of pairs) apply(pair);
    },
    loseAnswers(to) {
      every = to;
    },
    get lost() {
      return lost;
    },
    async close() {
      for (const [client] of pairs) client.destroy();
      server.close();
      await once(server, "close");
    },
  };
}

/** Directions that each mode forwards: commands, replies. */
const passing: Readonly<Record<Line, readonly [boolean, boolean]>> = {
  open: [true, true],
  reset: [true, true],
  forget: [true, true],
  "nothing passes": [false, false],
  "no commands pass": [false, true],
  "no answers pass": [true, false],
};
