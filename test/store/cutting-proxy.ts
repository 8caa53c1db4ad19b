import { once } from "node:events";
import { createServer, connect as open, type Socket } from "node:net";

/** Stands between a store and its Redis and can lose an answer. */
export interface CuttingProxy {
  readonly path: string;
  /** Lets the next command that holds this text reach Redis; when Redis answers, the connection is cut instead. */
  cutAfter(text: string): void;
  /** The texts of the commands whose answers were lost. */
  readonly cuts: readonly string[];
  close(): Promise<void>;
}

/** Listens on a unix socket for what is meant for another one. */
export async function startCuttingProxy(path: string, target: string): Promise<CuttingProxy> {
  const awaited = new Set<string>();
  const cuts: string[] = [];
  const sockets = new Set<Socket>();

  const server = createServer((client) => {
    const redis = open(target);
    let armed: string | undefined;
    for (const [socket, other] of [
      [client, redis],
      [redis, client],
    ] as const) {
      sockets.add(socket);
      socket.on("error", () => other.destroy());
      socket.on("close", () => {
        sockets.delete(socket);
        other.destroy();
      });
    }
    client.on("data", (data) => {
      for (const text of awaited) {
        if (!data.includes(text)) continue;
        awaited.delete(text);
        armed = text;
      }
      redis.write(data);
    });
    redis.on("data", (data) => {
      if (armed === undefined) return void client.write(data);
      cuts.push(armed);
      armed = undefined;
      client.destroy();
    });
  });
  server.listen(path);
  await once(server, "listening");
  return {
    path,
    cutAfter(text) {
      awaited.add(text);
    },
    cuts,
    async close() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}
