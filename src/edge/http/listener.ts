import type { Config } from "../../config/config.ts";
import type { Logger } from "../../core/logger.ts";
import type { ConnectionCaps } from "./connection-caps.ts";
import type { Handler } from "./handler.ts";
import type { ConnectionTimes } from "./socket-limits.ts";
import { createSockets } from "./sockets.ts";

/** A server that accepts connections. */
export interface Listener {
  /** Address of the server, such as `http://127.0.0.1:7420`. */
  readonly url: string;
  /**
   * Drains: the replica is not ready from now on, streams end with DRAINING, and connections close as they become idle; after
   * `drainMs` the remaining ones are cut. Resolves when every connection is closed.
   */
  close(drainMs: number): Promise<void>;
}

/** Options of a listener. */
export interface ListenerOptions extends ConnectionTimes {
  config: Pick<Config, "listen" | "tls">;
  /** Caps on open connections. */
  caps: Pick<ConnectionCaps, "admit">;
  handler: Handler;
  /** Called when the listener begins to close. */
  onClose: () => void;
  log: Logger;
}

/** Listens on one port, over HTTP/1.1 and HTTP/2, in clear or with TLS. */
export async function createListener({
  config,
  handler,
  onClose,
  log,
  ...options
}: ListenerOptions): Promise<Listener> {
  const { listen, tls } = config;
  const { host } = listen;
  const sockets = createSockets(handler, { ...options, tls });
  const scheme = tls === undefined ? "http" : "https";
  const port = await sockets.listen(host, listen.port);
  return {
    url: `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`,
    async close(drainMs) {
      onClose();
      const cut = await sockets.close(drainMs);
      if (cut > 0) log.warn("connections were cut at the end of the drain", { count: cut });
    },
  };
}
