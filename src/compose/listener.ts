import { createAuditReader } from "../approval/audit.ts";
import type { Store } from "../call/ports.ts";
import { readableRoot } from "../call/readable-root.ts";
import { createStoredOutputs } from "../call/stored-outputs.ts";
import { createWatcher } from "../call/watcher.ts";
import type { Config } from "../config/config.ts";
import type { Connectors } from "../connector/connectors.ts";
import type { EnforcementCheck } from "../connector/enforcement.ts";
import { assets } from "../core/assets.ts";
import type { Logger } from "../core/logger.ts";
import type { Credentials } from "../credential/credentials.ts";
import type { RunTokens } from "../credential/run-tokens.ts";
import { createServices } from "../edge/api/services.ts";
import { startEdge } from "../edge/edge.ts";
import type { Listener } from "../edge/http/listener.ts";
import type { Telemetry } from "../telemetry/telemetry.ts";
import type { CustomTools } from "../tool/files/custom-tools.ts";
import type { Replica } from "./replica.ts";
import type { serverInfo } from "./server-info.ts";
import type { SubagentParts } from "./subagents.ts";

/** Serves a replica over the network: the three services, health, metrics and the console on one port. */
export function startListener({
  config,
  store,
  replica: { calls, permissions, sessions, planner },
  telemetry,
  custom,
  agreement,
  about,
  credentials,
  runTokens,
  connectors,
  subagents,
  enforcement,
  log,
}: {
  config: Config;
  store: Store;
  replica: Replica;
  telemetry: Pick<Telemetry, "metrics" | "stats">;
  custom: Pick<CustomTools, "refresh" | "problems">;
  agreement: { agrees(): boolean };
  about: ReturnType<typeof serverInfo>;
  credentials: Credentials;
  runTokens: RunTokens;
  connectors: Connectors;
  subagents: SubagentParts;
  enforcement: EnforcementCheck;
  log: Logger;
}): Promise<Listener> {
  const { calls: callStore, permissions: asks, outputs } = store;
  return startEdge({
    config,
    log,
    services: (failures) =>
      createServices(
        {
          calls,
          permissions,
          sessions,
          credentials,
          connectors,
          ...subagents,
          enforcement,
          planner,
          reader: createStoredOutputs({ sessions, outputs }),
          watcher: createWatcher({ store: callStore, asks, sessions }),
          audit: createAuditReader({
            store: asks,
            readableRoot: (...asked) => readableRoot(callStore, ...asked),
          }),
          store: callStore,
          asksOf: asks.asksOf,
          stats: telemetry.stats,
          custom,
          about,
        },
        failures,
      ),
    credentials,
    runTokens,
    storeId: () => callStore.storeId,
    encoded: callStore,
    ready: callStore.ready,
    agrees: agreement.agrees,
    metrics: telemetry.metrics,
    consoleDirectory: assets.console,
  });
}
