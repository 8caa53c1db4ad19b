import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { createConnectors, createEnforcement } from "../agents/connect/connectors.ts";
import { type AcpHost, AgentFailure } from "../agents/runners/acp/acp-host.ts";
import { createAcpRunner } from "../agents/runners/acp/acp-runner.ts";
import type { RunnerRegistry } from "../agents/runners/runner-registry.ts";
import type { Calls } from "../call/calls.ts";
import { openCrashMarks } from "../call/crash-marks.ts";
import { createStops } from "../call/stops.ts";
import { type Config, ConfigError } from "../config/config.ts";
import type { Logger, ServiceLog } from "../core/logger.ts";
import { workspaceRoot } from "../core/paths.ts";
import { createRepeatedFailure } from "../core/repeated-failure.ts";
import { createRunTokens, type RunTokens } from "../people/known-credentials.ts";
import { builtInAgents } from "../policy/agents.ts";
import type { PlaceNetwork } from "../sandbox/network/session-networks.ts";
import { TooManyMounts } from "../sandbox/plan-files.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import { createTelemetry } from "../telemetry/telemetry.ts";
import { bindTool, isTool } from "../tool/define-tool.ts";
import { embeddedTools, type RegisterTools } from "../tool/embedded-tools.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import type { Judge } from "../tool/tool.ts";
import { createInvalid } from "../tools/invalid.ts";
import type { Supervisor } from "../tools/process/supervisor.ts";
import { offerSearchTools, startBuiltInTools, startSandbox } from "./built-in-tools.ts";
import { openCredentialParts } from "./credentials.ts";
import { openCustomTools, withToolProcesses } from "./custom-tools.ts";
import { startLastingProgram } from "./lasting-program.ts";
import { startListener } from "./listener.ts";
import { liveConfig } from "./live-config.ts";
import { checkConfiguredPolicy, createPolicyAgreement } from "./policy.ts";
import { answerCheck, createExport, createPushSubscriptions, createReach } from "./reach.ts";
import { createReplica, type Replica, startWorkers, workerParts } from "./replica.ts";
import { serverInfo, version } from "./server-info.ts";
import { openSkills, withSkillProblems } from "./skills.ts";
import { startSlack } from "./slack.ts";
import { limitsOf, openStore, sweepStore } from "./store.ts";
import { startSubagents } from "./subagents.ts";
import { openUpstreams, withUpstreamProblems } from "./upstreams.ts";

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
  const identities = await openCredentialParts(config, opened, log);
  const { credentials, people, accounts, passkeys, delegates, adoptedApprover } = identities;
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
    isOpen: async (session) => (await store.calls.getSession(session))?.closed === 0,
  });
  scope.defer(builtIn.close);
  const agreement = await createPolicyAgreement(store.calls, rules, log);
  const push = createPushSubscriptions(config, { store: opened, credentials });
  const reach = createReach(config, { store: opened, push, replicaId, people, personRules: () => config, log });
  if (reach !== undefined) scope.defer(reach.close);
  const auditExport = createExport(config, { store: opened, replicaId, log });
  if (auditExport !== undefined) scope.defer(auditExport.close);
  const replica = createReplica({
    notices: reach,
    ...{ groupsNow: delegates.groupsNow, delegatorsOf: delegates.delegatorsOf },
    receipts: { check: passkeys.check, storeId: () => opened.calls.storeId },
    ...{ config, rules, store, replicaId, crashMarks, log },
    connectorFiles: connectors.files,
    ...{ tools: builtIn.tools, gitNames: builtIn.gitNames, confines: builtIn.confines },
    ...workerParts(() => workers, telemetry.observer),
    agreesOnPolicy: agreement.agrees,
    stops: createStops(opened.stops, opened.calls.isShared),
  });
  const { calls, registry, hooks, judgeFor } = replica;
  const checkAnswer = answerCheck(config, { replica, store: opened, credentials });
  const workers = startWorkers(config, { replica, replicaId, store: opened, credentials, builtIn: builtIn.tools, log });
  scope.defer(startSlack(config, { replica, store: opened, check: checkAnswer, accounts, log }));
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
      ...(reach === undefined ? [] : [{ everyMs: 1_000, work: reach.tick }]),
      ...(auditExport === undefined ? [] : [{ everyMs: 1_000, work: async () => auditExport.tick() }]),
      ...(push === undefined ? [] : [{ everyMs: 1_000, work: push.refresh }]),
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
    ...{ identities, checkAnswer, runTokens, connectors },
    sources: withToolProcesses(upstreams.sources, custom),
    ...{ subagents, workers, reach, auditExport, push, backUp: opened.backUp },
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
      const exposed = next.sandbox.hidden.find(
        (path) => path !== configured.file && !configured.sandbox.hidden.includes(path),
      );
      if (exposed !== undefined)
        throw new ConfigError(
          `the configuration names ${exposed} now, which commands can still read; start again with it`,
        );
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
      await drain(config.drainMs).finally(() => scope.disposeAsync());
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

/** Background work and the pause after each round of it. */
interface Job {
  everyMs: number;
  work(): Promise<void>;
}

/** Repeats each job, never two rounds of one job at once. Logs failures, a repeated one each ten seconds, and goes on. Returns a function that stops all jobs and resolves when they have ended. */
function startTimers(jobs: readonly Job[], log: Logger): () => Promise<void> {
  const stopped = new AbortController();
  const loops = jobs.map(async ({ everyMs, work }) => {
    const failure = createRepeatedFailure<unknown>((error, count) =>
      log.error("a background job failed and is tried again", { error, count }),
    );
    while (!stopped.signal.aborted) {
      await work().then(failure.succeeded, failure.failed);
      await delay(everyMs, undefined, { signal: stopped.signal }).catch(() => undefined);
    }
  });
  return async () => {
    stopped.abort();
    await Promise.all(loops);
  };
}

/** The parts of a replica that run agents' programs. */
interface AcpParts {
  calls: Pick<Calls, "ownTools">;
  runTokens: Pick<RunTokens, "issue">;
  /** Returns the function that evaluates the configured rules for an agent. */
  judgeFor(agent: string): Judge;
  sandbox: Sandbox;
  supervisor: Supervisor;
  /** Address of this replica. */
  url: string;
  log: Logger;
}

/** Adds the runners that the configuration names. */
function addAcpRunners(
  { agentRunners }: Pick<Config, "agentRunners">,
  runners: Pick<RunnerRegistry, "add">,
  parts: AcpParts,
): void {
  const host = createAcpHost(parts);
  for (const runner of agentRunners) runners.add(createAcpRunner(host, runner));
}

/** Creates what runners need of the service: processes in the sandbox of their agent, tokens, and delegated calls. */
function createAcpHost({ calls, judgeFor, runTokens, sandbox, supervisor, url, log }: AcpParts): AcpHost {
  const { ownTools } = calls;
  const mcp = `${url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")}/mcp`;
  const { hostname, port } = new URL(mcp);
  const forwards = isLoopback(hostname) ? [{ host: hostname.replace(/^\[|\]$/g, ""), port: Number(port) }] : [];

  /** The network of a program that outlives single calls: no person is asked, and it reaches this service. */
  function networkOf(agent: string, name: string): PlaceNetwork {
    const judge = judgeFor(agent);
    return {
      name,
      forwards,
      judge: (url, leadsTo) =>
        judge({ permission: "webfetch", patterns: [url], ...(leadsTo !== undefined && { leadsTo }) }),
      refused: (_, reason) => log.warn("the network refused a request of an agent's program", { agent, reason }),
      used: () => {},
      unavailable: (reason) => log.warn("an agent's program has no network", { agent, reason }),
    };
  }

  return {
    confinement(agent) {
      const { profile, network } = sandbox.confinement(agent);
      if (profile === "off") return "without a sandbox";
      return `in the sandbox profile ${profile}, ${networkWords[network]}`;
    },
    async start({ argv, cwd, env }, run, onStale) {
      const { agent, childSession: sessionId, cwd: workspace } = run;
      const { callId } = run.parentCall;
      const call = { sessionId, callId };
      const place = { agent, cwd, workspace, directories: [], session: sessionId };
      const files = {
        rules: () => ownTools.fileRulesOf(run, agent),
        onStale(problem: string) {
          log.warn("rules or files changed while an agent's program runs", { agent, reason: problem });
          onStale(`${problem} Cancel the task and start it again.`);
        },
        onProblem: (error: unknown) => log.warn("it is unknown what an agent's program reaches", { agent, error }),
      };
      const program = startLastingProgram(
        { sandbox, supervisor },
        { call, argv, env, files },
        { ...place, network: networkOf(agent, `${sessionId}/${callId}`) },
      );
      return await program.catch((cause: unknown) => {
        if (!(cause instanceof TooManyMounts)) throw cause;
        throw new AgentFailure(
          `it was not started, since ${cause.message}; the operator raises masks_max, or lets rules name whole directories`,
          { cause },
        );
      });
    },
    async openTools(run) {
      const caller = await ownTools.principalOf(run);
      const { token, revoke } = runTokens.issue({ ...caller, agents: [run.agent], session: run.childSession });
      return { url: `${mcp}/${run.childSession}`, token, close: revoke };
    },
    async begin(run, use, signal) {
      const outcome = await ownTools.begin(run, { kind: "acp", ...use }, signal);
      if (outcome.case === "refused") return outcome;
      const { assignment, part } = outcome;
      const { state } = part;
      return { case: "begun", assignment, input: state.value?.input ?? {} };
    },
    finish: ownTools.finish,
    cancel: ownTools.cancel,
    log: (message, { error, ...args }) => log.warn(message, { error, args }),
  };
}

const networkWords = {
  proxy: "with access to the hosts that the rules for webfetch allow",
  none: "without network access",
  open: "with network access",
};

const isLoopback = (hostname: string) => hostname === "[::1]" || hostname.startsWith("127.");
