import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { onTestFinished } from "vitest";

interface Front {
  url: string;
  cut(): void;
  stall(): void;
  flow(): void;
}

/**
 * Stands before replicas, as a load balancer does: each connection goes to the first of them that takes it. `cut` breaks those
 * that are open, `stall` makes them and later ones pass on nothing until `flow`, as a network does that loses all packets: bytes
 * that were sent meanwhile then arrive, also those of a client that has left.
 */
export async function startFront(urls: readonly string[]): Promise<Front> {
  const open = new Set<Socket>();
  const pairs = new Map<Socket, Socket>();
  let flowing = Promise.resolve();
  let resume = () => {};
  const front = createServer({ pauseOnConnect: true }, async (client) => {
    open.add(client.on("close", () => open.delete(client)).on("error", () => client.destroy()));
    const replica = await firstThatTakes(urls);
    if (replica === undefined) return void client.destroy();
    replica.on("error", () => client.destroy()).on("close", () => client.destroy());
    client.on("close", () => replica.destroy());
    await flowing;
    client.pipe(replica).pipe(client);
    pairs.set(client, replica);
    client.on("close", () => pairs.delete(client));
  });
  front.listen(0, "127.0.0.1");
  await once(front, "listening");
  const cut = () => {
    for (const client of open) client.destroy();
  };
  const stall = () => {
    flowing = new Promise((resolve) => {
      resume = resolve;
    });
    for (const [client, replica] of pairs) {
      client.unpipe().pause();
      replica.unpipe().pause();
    }
  };
  const flow = () => {
    resume();
    for (const [client, replica] of pairs) client.pipe(replica).pipe(client);
  };
  onTestFinished(() => {
    front.close();
    cut();
  });
  const address = front.address();
  return { url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`, cut, stall, flow };
}

async function firstThatTakes([url, ...others]: readonly string[]): Promise<Socket | undefined> {
  if (url === undefined) return undefined;
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  const taken = await Promise.race([
    once(socket, "connect").then(() => true),
    once(socket, "error").then(
      () => false,
      () => false,
    ),
  ]).catch(() => false);
  return taken ? socket : firstThatTakes(others);
}
