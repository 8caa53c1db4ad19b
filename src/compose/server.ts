import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { openCrashMarks } from "../call/crash-marks.ts";
import type { Config } from "../config/config.ts";
import { createConnectors } from "../connector/connectors.ts";
import { createEnforcement } from "../connector/enforcement.ts";
import type { Logger, ServiceLog } from "../core/logger.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { createRunTokens } from "../credential/run-tokens.ts";
import { builtInAgents } from "../policy/agents.ts";
import { createTelemetry } from "../telemetry/telemetry.ts";
import { bindTool } from "../tool/define-tool.ts";
import { embeddedTools } from "../tool/embedded-tools.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry, ToolsByName } from "../tool/registry.ts";
import { createInvalid } from "../tools/invalid.ts";
import { addAcpRunners } from "./acp-runners.ts";
import { offerSearchTools, startBuiltInTools, startSandbox } from "./built-in-tools.ts";
import { openCredentialParts } from "./credentials.ts";
import { openCustomTools } from "./custom-tools.ts";
import { startListener } from "./listener.ts";
import { liveConfig } from "./live-config.ts";
import { checkConfiguredPolicy, createPolicyAgreement } from "./policy.ts";
import { createReplica } from "./replica.ts";
import { serverInfo, version } from "./server-info.ts";
import { openSkills, withSkillProblems } from "./skills.ts";
import { limitsOf, openStore, sweepStore } from "./store.ts";
import { startSubagents } from "./subagents.ts";
import { startTimers } from "./timers.ts";

/** Time in which clients that wait for the last calls of a drain read how they ended. */
const lastEventsMs = 100;
/** Time after which a stop cuts connections whose clients do not read. */
const cutMs = 2_000;

/** A running service. */
export interface Server {
  /** The address it listens on. */
  readonly url: string;
  /** Adds tools of the embedding program, for one workspace root or for all, and returns the function that removes them. */
  register: Registry["register"];
  /** Adds hooks of the embedding program, under a name, and returns the function that removes them. */
  addHooks: HookChain["add"];
  /** Replaces tokens, rules, agents and search providers by those of another configuration; refuses it whole if a start would. */
  reload(next: Config): Promise<void>;
  /** Creates a one-time code with which a person signs in as approver; undefined without authentication. */
  createSignInCode(): string | undefined;
  /** True if this start replaced the approver token of an earlier version by its hash. */
  readonly adoptedApprover: boolean;
  /**
   * Drains and stops: refuses new calls, hands waiting ones back and gives running ones `drainMs`, while approvers and readers are
   * served; then ends all streams, so that clients resume elsewhere.
   */
  close(): Promise<void>;
}

/**
 * Composes the service and starts it. `tools` are added to the built-in tools; `buildId` names the build of the embedding program,
 * for the definition IDs of its tools that declare no version; `open` opens the store.
 */
export async function startServer(
  configured: Config,
  log: Logger & Partial<Pick<ServiceLog, "dropped">>,
  { tools = {}, buildId, open = openStore }: { tools?: ToolsByName; buildId?: string; open?: typeof openStore } = {},
): Promise<Server> {
  for (const [name, tool] of Object.entries(tools)) bindTool(name, tool);
  await checkConfiguredPolicy(configured, log);
  const { config, rules, replace } = liveConfig({ ...configured, limits: limitsOf(configured) });
  const replicaId = randomUUID();
  const sandbox = await startSandbox(config, log);
  const opened = await open(config, log);
  const { credentials, adoptedApprover } = await openCredentialParts(config, opened, log);
  const connectors = createConnectors(opened.connectors, opened.calls.now);
  const telemetry = await createTelemetry({ log, version, tracing: config.tracing, store: opened });
  const { store } = telemetry;
  const crashMarks = openCrashMarks(join(config.dataDirectory, "entered"), replicaId);
  const skills = await openSkills(config, log);
  const agentNames = () => [...builtInAgents.keys(), ...rules.agents.keys()];
  const builtIn = startBuiltInTools({ sandbox, replicaId, leaseMs: config.leaseMs, skills, agentNames });
  const agreement = await createPolicyAgreement(store.calls, rules, log);
  const replica = createReplica({
    config,
    rules,
    connectorFiles: connectors.files,
    store,
    replicaId,
    tools: builtIn.tools,
    crashMarks,
    observer: telemetry.observer,
    agreesOnPolicy: agreement.agrees,
    log,
  });
  const { calls, registry, hooks, judgeFor } = replica;
  const subagents = startSubagents({ config, replica, store, credentials });
  const compareSearchTools = offerSearchTools(registry, config);
  const register = embeddedTools(registry, { buildId, warn: log.warn });
  register(tools);
  // Registered apart from the built-in tools, since it lists tools of files and plugins too.
  const namesIn = (workspace: string) => registry.list(workspaceRoot(workspace)).map(({ name }) => name);
  registry.register({ invalid: createInvalid({ namesIn }) });
  const custom = await openCustomTools(config, registry, hooks, log).catch(async (error: unknown) => {
    await store.calls.close();
    throw error;
  });
  const hasSession = async (id: string) => (await store.calls.getSession(id)) !== undefined;
  const stopTimers = startTimers(
    [
      { everyMs: 1_000, work: calls.recover },
      { everyMs: config.leaseMs / 3, work: calls.renew },
      { everyMs: 500, work: calls.stopLapsed },
      { everyMs: 500, work: calls.handleCancels },
      { everyMs: 1_000, work: credentials.refresh },
      { everyMs: 1_000, work: connectors.refresh },
      { everyMs: 10_000, work: agreement.compare },
      { everyMs: 3_600_000, work: () => sweepStore(store) },
      { everyMs: 3_600_000, work: () => sandbox.sweep(hasSession) },
    ],
    log,
  );
  const about = serverInfo(config, sandbox);
  const runTokens = createRunTokens();
  const listener = await startListener({
    config,
    store,
    replica,
    telemetry,
    custom: withSkillProblems(custom, skills),
    agreement,
    about,
    credentials,
    runTokens,
    connectors,
    subagents,
    enforcement: createEnforcement({ ...config, serviceUid: process.getuid?.(), credentials }),
    log,
  });
  const { supervisor } = builtIn;
  addAcpRunners(config, subagents.runners, {
    ...{ calls, judgeFor, runTokens, sandbox, supervisor },
    ...{ url: listener.url, log },
  });
  return {
    url: listener.url,
    register,
    addHooks: hooks.add,
    async reload(next) {
      await checkConfiguredPolicy(next, log);
      replace(next);
      credentials.endInvalid();
      replica.nameAgents();
      compareSearchTools();
      await agreement.compare();
    },
    createSignInCode: () => (config.insecureNoAuth ? undefined : credentials.createCode().code),
    adoptedApprover,
    async close() {
      listener.drain();
      // The calls of their subagents are refused from now on.
      subagents.streams.close();
      const hasRun = await calls.drain(config.drainMs);
      if (hasRun) await delay(lastEventsMs);
      await listener.close(cutMs);
      await stopTimers();
      custom.close();
      await builtIn.close();
      crashMarks.close();
      await telemetry.close();
      await store.calls.close();
    },
  };
}
