import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { createConnectors } from "../agents/connect/connectors.ts";
import { createEnforcement } from "../agents/connect/enforcement.ts";
import { openCrashMarks } from "../call/crash-marks.ts";
import { createStops } from "../call/stopped.ts";
import type { Config } from "../config/config.ts";
import type { Logger, ServiceLog } from "../core/logger.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { createRunTokens } from "../people/run-tokens.ts";
import { builtInAgents } from "../policy/agents.ts";
import { createTelemetry } from "../telemetry/telemetry.ts";
import { bindTool, isTool } from "../tool/define-tool.ts";
import { embeddedTools, type RegisterTools } from "../tool/embedded-tools.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import { createInvalid } from "../tools/invalid.ts";
import { addAcpRunners } from "./acp-runners.ts";
import { offerSearchTools, startBuiltInTools, startSandbox } from "./built-in-tools.ts";
import { openCredentialParts } from "./credentials.ts";
import { openCustomTools, withToolProcesses } from "./custom-tools.ts";
import { startListener } from "./listener.ts";
import { liveConfig } from "./live-config.ts";
import { checkConfiguredPolicy, createPolicyAgreement } from "./policy.ts";
import { createReplica, type Replica } from "./replica.ts";
import { serverInfo, version } from "./server-info.ts";
import { openSkills, withSkillProblems } from "./skills.ts";
import { limitsOf, openStore, sweepStore } from "./store.ts";
import { startSubagents } from "./subagents.ts";
import { startTimers } from "./timers.ts";
import { openUpstreams, withUpstreamProblems } from "./upstreams.ts";
import { startWorkers, workerParts } from "./workers.ts";

/** Time in which clients that wait for the last calls of a drain read how they ended. */
const lastEventsMs = 100;
/** Time after which a stop cuts connections whose clients do not read. */
const cutMs = 2_000;

/** A running service. */
export interface Server {
  /** The address it listens on. */
  readonly url: string;
  register: RegisterTools;
  /** Adds hooks of the embedding program, under a name, and returns the function that removes them. */
  addHooks: HookChain["add"];
  /** Replaces tokens, rules, agents and search providers by those of another configuration; refuses it whole if a start would. */
  reload(next: Config): Promise<void>;
  /** Creates a one-time code with which a person signs in as approver; undefined without authentication. */
  createSignInCode(): string | undefined;
  /** Facts about this machine that weaken the sandbox of commands. */
  readonly warnings: readonly string[];
  /** True if this start replaced the approver token of an earlier version by its hash. */
  readonly adoptedApprover: boolean;
  /**
   * Drains and stops: refuses new calls, hands waiting ones back and gives running ones `drainMs`, while approvers and readers are
   * served; then ends all streams, so that clients resume elsewhere.
   */
  close(): Promise<void>;
}

/**
 * Composes the service and starts it; a start that fails ends what it has started. `tools` are added to the built-in tools; `buildId`
 * names the build of the embedding program, for the definition IDs of its tools that declare no version; `open` opens the store.
 */
export async function startServer(
  configured: Config,
  log: Logger & Partial<Pick<ServiceLog, "dropped">>,
  options: StartOptions = {},
): Promise<Server> {
  const scope = new AsyncDisposableStack();
  try {
    return await startParts(configured, log, options, scope);
  } catch (error) {
    await scope
      .disposeAsync()
      .catch((problem: unknown) => log.error("a failed start left something", { error: problem }));
    throw error;
  }
}

interface StartOptions {
  tools?: Readonly<Record<string, object>>;
  buildId?: string;
  open?: typeof openStore;
}

/** Starts the parts of the service. Each registers its end in `scope` where it is made, which ends them in reverse. */
async function startParts(
  configured: Config,
  log: Logger & Partial<Pick<ServiceLog, "dropped">>,
  { tools = {}, buildId, open = openStore }: StartOptions,
  scope: AsyncDisposableStack,
): Promise<Server> {
  for (const [name, tool] of Object.entries(tools)) if (isTool(tool)) bindTool(name, tool);
  await checkConfiguredPolicy(configured, log);
  const { config, rules, replace } = liveConfig({ ...configured, limits: limitsOf(configured) });
  const replicaId = randomUUID();
  const { sandbox, warnings } = await startSandbox(config, log, scope);
  const opened = await open(config, log);
  scope.defer(opened.calls.close);
  const { credentials, jwt, people, adoptedApprover } = await openCredentialParts(config, opened, log);
  const connectors = createConnectors(opened.connectors, opened.calls.now);
  const telemetry = await createTelemetry({ log, version, tracing: config.tracing, store: opened });
  scope.defer(telemetry.close);
  const { store } = telemetry;
  const crashMarks = openCrashMarks(join(config.dataDirectory, "entered"), replicaId);
  scope.defer(crashMarks.close);
  const skills = await openSkills(config, log);
  const judgeIn = (workspace: string, directory: string) => replica.judgeFor("", { workspace, directory });
  const builtIn = startBuiltInTools({
    ...{ ...config, sandbox, replicaId, skills, judgeIn, log },
    agentNames: () => agentNamesOf(rules),
  });
  scope.defer(builtIn.close);
  const agreement = await createPolicyAgreement(store.calls, rules, log);
  const replica = createReplica({
    ...{ config, rules, store, replicaId, crashMarks, log },
    connectorFiles: connectors.files,
    ...{ tools: builtIn.tools, gitNames: builtIn.gitNames, confines: builtIn.confines },
    ...workerParts(() => workers, telemetry.observer),
    agreesOnPolicy: agreement.agrees,
    stops: createStops(opened.stops, opened.calls.isShared),
  });
  const { calls, registry, hooks, judgeFor } = replica;
  const workers = startWorkers(config, { replica, replicaId, store: opened, credentials, builtIn: builtIn.tools, log });
  const subagents = startSubagents({ config, replica, store, credentials });
  const compareSearchTools = offerSearchTools(registry, config);
  const register = embeddedTools(registry, { buildId, warn: log.warn });
  await register(tools);
  // Registered apart from the built-in tools, since it lists tools of files and plugins too.
  registry.register({ invalid: createInvalid({ namesIn: (name) => namesOfTools(registry, name) }) });
  const processes = { sandbox, supervisor: builtIn.supervisor, judgeFor, log };
  const drain = createDrain({ subagents, workers, calls });
  scope.defer(() => drain(0));
  const custom = await openCustomTools(config, { registry, hooks, judgeIn, ...processes });
  scope.defer(custom.close);
  const upstreams = openUpstreams(config, { registry, store: opened, ...processes });
  scope.defer(upstreams.sources.close);
  const stopTimers = startTimers(
    [
      { everyMs: 1_000, work: calls.recover },
      { everyMs: config.leaseMs / 3, work: calls.renew },
      { everyMs: 500, work: calls.stopLapsed },
      { everyMs: 500, work: calls.handleCancels },
      { everyMs: 1_000, work: calls.enforceStops },
      { everyMs: 1_000, work: credentials.refresh },
      { everyMs: 1_000, work: connectors.refresh },
      { everyMs: 1_000, work: opened.acceptedSources.refresh },
      { everyMs: 1_000, work: workers.refresh },
      { everyMs: 5_000, work: workers.announce },
      { everyMs: 1_000, work: agreement.compare },
      { everyMs: 3_600_000, work: () => sweepStore(store) },
      { everyMs: 3_600_000, work: () => sandbox.sweep(async (id) => (await store.calls.getSession(id)) !== undefined) },
    ],
    log,
  );
  scope.defer(stopTimers);
  const runTokens = createRunTokens();
  const listener = await startListener({
    config,
    store,
    replica,
    telemetry,
    custom: withUpstreamProblems(withSkillProblems(custom, skills), upstreams.sources, config.file),
    agreement,
    about: serverInfo(config, sandbox, warnings),
    ...{ credentials, jwt, people, runTokens, connectors },
    sources: withToolProcesses(upstreams.sources, custom),
    ...{ subagents, workers, backUp: opened.backUp },
    enforcement: createEnforcement({
      ...{ ...config, serviceUid: process.getuid?.(), credentials, connectors },
      tokens: () => config.tokens,
      unfiltered: sandbox.unfiltered,
    }),
    log,
  });
  scope.defer(() => listener.close(cutMs));
  addAcpRunners(config, subagents.runners, {
    ...{ ...processes, calls, runTokens, url: listener.url },
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
      await upstreams.replace(next.upstreamServers);
      await agreement.take();
    },
    createSignInCode: () => (config.insecureNoAuth ? undefined : credentials.createCode().code),
    ...{ warnings, adoptedApprover },
    async close() {
      listener.drain();
      await drain(config.drainMs);
      await scope.disposeAsync();
    },
  };
}

/** Creates the function that hands calls back and ends the streams of runners and workers. It does so once. */
function createDrain({
  subagents,
  workers,
  calls,
}: {
  subagents: ReturnType<typeof startSubagents>;
  workers: ReturnType<typeof startWorkers>;
  calls: Replica["calls"];
}): (drainMs: number) => Promise<void> {
  let drained: Promise<void> | undefined;
  const run = async (drainMs: number) => {
    subagents.streams.drain();
    workers.drain(drainMs);
    const hasRun = await calls.drain(drainMs);
    // The drain has left their runs to the replica to which their runners connect next.
    subagents.close();
    await workers.close();
    if (hasRun) await delay(lastEventsMs);
  };
  return (drainMs) => {
    drained ??= run(drainMs);
    return drained;
  };
}

const agentNamesOf = ({ agents }: { agents: ReadonlyMap<string, unknown> }) => [
  ...builtInAgents.keys(),
  ...agents.keys(),
];
const namesOfTools = (registry: Registry, workspace: string) =>
  registry.list(workspaceRoot(workspace)).map(({ name }) => name);
