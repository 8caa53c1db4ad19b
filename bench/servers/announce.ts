import type { Server } from "node:net";

/** Listens, prints its URL for the bench, and ends the process on SIGTERM so that a CPU profile gets written. */
export function announce(server: Server): void {
  server.listen(0, "127.0.0.1", () => {
    const address = server.address();
    if (typeof address === "object" && address !== null) announcePort(address.port);
  });
}

/** The same for a server that listens on its own. */
export function announcePort(port: number): void {
  process.stdout.write(`http://127.0.0.1:${port}\n`);
  process.once("SIGTERM", () => process.exit());
}
