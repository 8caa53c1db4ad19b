import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";

/** A wire between clients and a server, which can be cut. */
export interface Wire {
  url: string;
  /** Ends all connections at once, as a broken network does; new ones come through. */
  cut(): void;
  close(): Promise<void>;
}

/** Lays a wire to a server. After a restart of the server, new connections reach its new address. */
export async function layWire(server: { readonly url: string }): Promise<Wire> {
  const sockets = new Set<Socket>();
  function keep(socket: Socket): Socket {
    sockets.add(socket);
    return socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
  }
  const wire = createServer((near) => {
    const { hostname, port } = new URL(server.url);
    const far = keep(connect(Number(port), hostname));
    keep(near).pipe(far).pipe(near);
    near.on("close", () => far.destroy());
    far.on("close", () => near.destroy());
  });
  wire.listen(0, "127.0.0.1");
  await once(wire, "listening");
  const address = wire.address();
  if (address === null || typeof address === "string") throw new Error("the wire has no port");
  function cut(): void {
    for (const socket of sockets) socket.resetAndDestroy();
  }
  return {
    url: `http://127.0.0.1:${address.port}`,
    cut,
    async close() {
      cut();
      wire.close();
      await once(wire, "close");
    },
  };
}
