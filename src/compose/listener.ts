import { join } from "node:path";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createAuditReader } from "../approval/audit.ts";
import type { Store } from "../call/ports.ts";
import { readableRoot } from "../call/readable-root.ts";
import { createReader } from "../call/reader.ts";
import { createWatcher } from "../call/watcher.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { permissionService } from "../edge/api/permission-service.ts";
import { sessionService } from "../edge/api/session-service.ts";
import { toolService } from "../edge/api/tool-service.ts";
import { createWatchMany } from "../edge/api/watch-many.ts";
import { createListener, type Listener } from "../edge/http/listener.ts";
import type { Telemetry } from "../telemetry/telemetry.ts";
import type { CustomTools } from "../tool/files/custom-tools.ts";
import type { Replica } from "./replica.ts";
import type { serverInfo } from "./server-info.ts";

/** Serves a replica over the network: the three services, health, metrics and the console on one port. */
export function startListener({
  config,
  store,
  replica: { calls, permissions, sessions, planner },
  telemetry,
  custom,
  agreement,
  about,
  log,
}: {
  config: Config;
  store: Store;
  replica: Replica;
  telemetry: Pick<Telemetry, "metrics" | "stats">;
  custom: Pick<CustomTools, "refresh" | "problems">;
  agreement: { agrees(): boolean };
  about: ReturnType<typeof serverInfo>;
  log: Logger;
}): Promise<Listener> {
  const { calls: callStore, permissions: asks, outputs } = store;
  return createListener({
    config,
    log,
    ready: callStore.ready,
    agrees: agreement.agrees,
    metrics: telemetry.metrics,
    consoleDirectory: join(import.meta.dirname, "../../dist/console"),
    routes(router, errors) {
      const overTools = toolService({
        calls,
        planner,
        reader: createReader({ sessions, outputs }),
        store: callStore,
        asksOf: asks.asksOf,
        stats: telemetry.stats,
        custom,
        about,
      });
      const overPermissions = permissionService({
        permissions,
        sessions,
        planner,
        audit: createAuditReader({
          store: asks,
          readableRoot: (...asked) => readableRoot(callStore, ...asked),
        }),
        watcher: createWatcher({ store: callStore, asks, sessions }),
        store: callStore,
      });
      const watchMany = createWatchMany({ ...overTools, ...overPermissions }, errors);
      router.service(ToolService, { ...overTools, watchMany });
      router.service(PermissionService, overPermissions);
      router.service(SessionService, sessionService({ sessions, calls, store: callStore }));
    },
  });
}
