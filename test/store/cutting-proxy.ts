import { once } from "node:events";
import { createServer, connect as open, type Socket } from "node:net";

/** A proxy between a store and its Redis that can lose a reply. */
export interface CuttingProxy {
  readonly path: string;
  /** Forwards the next command that contains this text to Redis, and cuts the connection instead of forwarding the reply. */
  cutAfter(text: string): void;
  /** The texts of the commands whose replies were lost. */
  readonly cuts: readonly string[];
  close(): Promise<void>;
}

/** Listens on a unix socket and forwards to another one. */
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
