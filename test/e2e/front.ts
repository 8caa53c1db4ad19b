import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { onTestFinished } from "vitest";

/**
 * Stands before replicas, as a load balancer does: each connection goes to the first of them that takes it. `cut` breaks those
 * that are open.
 */
export async function startFront(urls: readonly string[]): Promise<{ url: string; cut(): void }> {
  const open = new Set<Socket>();
  const front = createServer({ pauseOnConnect: true }, async (client) => {
    open.add(client.on("close", () => open.delete(client)).on("error", () => client.destroy()));
    const replica = await firstThatTakes(urls);
    if (replica === undefined) return void client.destroy();
    replica.on("error", () => client.destroy()).on("close", () => client.destroy());
    client.on("close", () => replica.destroy());
    client.pipe(replica).pipe(client);
  });
  front.listen(0, "127.0.0.1");
  await once(front, "listening");
  const cut = () => {
    for (const client of open) client.destroy();
  };
  onTestFinished(() => {
    front.close();
    cut();
  });
  const address = front.address();
  return { url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`, cut };
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
