import type { Connectors, EnforcementCheck } from "../agents/connect/connectors.ts";
import { createAuditReader } from "../approval/decisions.ts";
import type { Workers } from "../bodies/workers/workers.ts";
import type { Store } from "../call/ports.ts";
import { readableRoot } from "../call/sessions.ts";
import { createStoredOutputs } from "../call/stored-outputs.ts";
import { createWatcher } from "../call/watcher.ts";
import type { Config } from "../config/config.ts";
import { assets } from "../core/assets.ts";
import type { Logger } from "../core/logger.ts";
import { createServices } from "../edge/api/services.ts";
import { startEdge } from "../edge/edge.ts";
import type { Listener } from "../edge/http/listener.ts";
import { createRestDomain } from "../edge/rest/event-stream.ts";
import type { RunTokens } from "../people/known-credentials.ts";
import type { AuditExport } from "../reach/audit-export.ts";
import { answererOf, type ChannelAnswerCheck } from "../reach/channel-answers.ts";
import type { NoticeOutbox } from "../reach/outbox.ts";
import type { PushDesk } from "../reach/ports.ts";
import type { UpstreamSources } from "../sources/mcp/upstream-sources.ts";
import { exportMetrics, noticeMetrics, sourceMetrics, workerMetrics } from "../telemetry/metrics.ts";
import type { Telemetry } from "../telemetry/telemetry.ts";
import type { openCredentialParts } from "./credentials.ts";
import type { Replica } from "./replica.ts";
import type { serverInfo } from "./server-info.ts";
import type { ToolProblems } from "./skills.ts";
import type { SubagentParts } from "./subagents.ts";

/** Serves a replica over the network: the three services, health, metrics and the console on one port. */
export function startListener({
  config,
  store,
  replica,
  identities,
  telemetry,
  checkAnswer,
  subagents,
  ...parts
}: {
  config: Config;
  store: Store;
  replica: Replica;
  identities: Awaited<ReturnType<typeof openCredentialParts>>;
  telemetry: Pick<Telemetry, "metrics" | "stats">;
  checkAnswer: ChannelAnswerCheck;
  subagents: SubagentParts;
  custom: ToolProblems;
  agreement: { agrees(): boolean };
  about: ReturnType<typeof serverInfo>;
  runTokens: RunTokens;
  connectors: Connectors;
  sources: Pick<UpstreamSources, "list" | "accept">;
  backUp: () => AsyncIterable<Uint8Array>;
  workers: Workers;
  reach: NoticeOutbox | undefined;
  auditExport: AuditExport | undefined;
  push: PushDesk | undefined;
  enforcement: EnforcementCheck;
  log: Logger;
}): Promise<Listener> {
  const { calls: callStore, permissions: asks, outputs } = store;
  const { sessions } = replica;
  const { sources, workers, reach, auditExport } = parts;
  const rest = config.servesOpencode ? createRestDomain({ store, sessions, roots: config.workspaces }) : undefined;
  return startEdge({
    ...{ config, log: parts.log, ...identities, runTokens: parts.runTokens },
    services: (failures, shareOf) =>
      createServices(
        {
          ...{ ...parts, ...replica, ...identities, ...subagents },
          personRules: () => config,
          reader: createStoredOutputs({ sessions, outputs }),
          watcher: createWatcher({ store: callStore, asks, sessions }),
          audit: createAuditReader({
            store: asks,
            readableRoot: (...asked) => readableRoot(callStore, ...asked),
          }),
          store: callStore,
          asksOf: asks.asksOf,
          stats: telemetry.stats,
          encoded: callStore,
          answererOf: (sender, response) => answererOf(checkAnswer, sender, response),
        },
        failures,
        shareOf,
      ),
    ...(rest && { rest }),
    storeId: () => callStore.storeId,
    encoded: callStore,
    ready: callStore.ready,
    safety: callStore.safety,
    agrees: parts.agreement.agrees,
    metrics: async () =>
      (await telemetry.metrics()) +
      sourceMetrics(await sources.list()) +
      workerMetrics(workers.list()) +
      (reach === undefined ? "" : await noticeMetrics(reach)) +
      (auditExport === undefined ? "" : exportMetrics(auditExport.counts())),
    consoleDirectory: assets.console,
  });
}
