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
  /** Reports from now on that the replica is not ready. Requests are still served, so that approvers can answer while calls end. */
  drain(): void;
  /**
   * Closes: streams end with DRAINING, and connections close as they become idle; after `cutMs` the remaining ones are cut.
   * Resolves when every connection is closed.
   */
  close(cutMs: number): Promise<void>;
}

/** Options of a listener. */
export interface ListenerOptions extends ConnectionTimes {
  config: Pick<Config, "listen" | "tls">;
  /** Caps on open connections. */
  caps: Pick<ConnectionCaps, "admit">;
  handler: Handler;
  /** Called when the listener begins to drain; it may be called again. */
  onDrain: () => void;
  /** Called when the listener begins to close. */
  onClose: () => void;
  log: Logger;
}

/** Listens on one port, over HTTP/1.1 and HTTP/2, in clear or with TLS. */
export async function createListener({
  config,
  handler,
  onDrain,
  onClose,
  log,
  ...options
}: ListenerOptions): Promise<Listener> {
  const { listen, tls } = config;
  const { host } = listen;
  const sockets = createSockets(handler, { ...options, tls });
  const scheme = tls === undefined ? "http" : "https";
  const port = await sockets.listen(listen);
  return {
    url: `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`,
    drain: onDrain,
    async close(cutMs) {
      onDrain();
      onClose();
      const cut = await sockets.close(cutMs);
      if (cut > 0) log.warn("connections were cut at the end of the drain", { count: cut });
    },
  };
}
