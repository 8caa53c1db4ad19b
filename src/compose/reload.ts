import { isDeepStrictEqual } from "node:util";
import type { Config } from "../config/config.ts";
import type { ServiceLog } from "../core/logger.ts";
import { reloadedSettings } from "./live-config.ts";
import type { Server } from "./server.ts";

/**
 * Creates the handler of SIGHUP: it opens the log file again and applies tokens, policy, search providers and MCP servers of the configuration
 * as it is then. A configuration that a start would refuse changes nothing. Reloads run one after the other.
 */
export function createReload({
  server,
  started,
  load,
  log,
}: {
  server: Pick<Server, "reload">;
  /** The configuration of the start. */
  started: Config;
  load: () => Config;
  log: ServiceLog;
}): () => void {
  let last = Promise.resolve();

  async function reload(): Promise<void> {
    try {
      const next = load();
      await server.reload(next);
      log.info("configuration reloaded: its tokens, rules, search providers and MCP servers are in force");
      const others = Object.keys(next).filter(
        (key) =>
          !reloadedSettings.some((name) => name === key) && !isDeepStrictEqual(get(next, key), get(started, key)),
      );
      if (others.length > 0) log.warn(`settings changed that need a restart: ${others.join(", ")}`);
    } catch (error) {
      log.error(
        "configuration not reloaded: tokens, rules, search providers and MCP servers stay as they were; correct it and send SIGHUP again",
        {
          error,
        },
      );
    }
  }

  return () => {
    log.reopen();
    last = last.then(reload);
  };
}

const get = (config: Config, key: string): unknown => Object.entries(config).find(([name]) => name === key)?.[1];
