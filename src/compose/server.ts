import { createHash, randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { LimitsSchema, SandboxState, ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import packageJson from "../../package.json" with { type: "json" };
import { createPermissions } from "../approval/permissions.ts";
import type { PermissionStore } from "../approval/ports.ts";
import { createAuditReader } from "../call/audit.ts";
import { type Calls, createCalls } from "../call/calls.ts";
import { createInputEdit } from "../call/edit.ts";
import { createExecutor } from "../call/executor.ts";
import { type CallObserver, tellingEnds } from "../call/observer.ts";
import { createPlanner } from "../call/planner.ts";
import { createPlanning } from "../call/planning.ts";
import type { CallStore, OutputStore } from "../call/ports.ts";
import { createReader } from "../call/reader.ts";
import { createSessions } from "../call/sessions.ts";
import { failed } from "../call/state.ts";
import { createWatcher } from "../call/watcher.ts";
import { type Config, ConfigError, checkPolicy, createWorkspaceRules, rulesOf } from "../config/config.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { newId } from "../core/ids.ts";
import type { Logger } from "../core/logger.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { permissionService } from "../edge/api/permission-service.ts";
import { sessionService } from "../edge/api/session-service.ts";
import { toolService } from "../edge/api/tool-service.ts";
import { createWatchMany } from "../edge/api/watch-many.ts";
import { createListener } from "../edge/http/listener.ts";
import { builtInAgents } from "../policy/agents.ts";
import { type ConfiguredRules, createLayers } from "../policy/layers.ts";
import { createPolicy } from "../policy/policy.ts";
import type { Rule } from "../policy/rules.ts";
import { openRedisStore } from "../store/redis/store.ts";
import { openSqliteStore } from "../store/sqlite/store.ts";
import { createTelemetry } from "../telemetry/telemetry.ts";
import { type CustomTools, createCustomTools } from "../tool/files/custom-tools.ts";
import { createModules } from "../tool/files/modules.ts";
import { readSources } from "../tool/files/sources.ts";
import { createTrust } from "../tool/files/trust.ts";
import { createHooks, type HookChain } from "../tool/hooks.ts";
import { createRegistry, type Registry } from "../tool/registry.ts";
import type { Tool } from "../tool/tool.ts";
import { builtInTools } from "../tools/index.ts";
import { createInvalid } from "../tools/invalid.ts";
import { createPipes } from "../tools/process/pipe.ts";
import { openSandbox, type Sandbox } from "../tools/process/sandbox.ts";
import { createSupervisor } from "../tools/process/supervisor.ts";
import "../writer-room.ts";

const version = packageJson.version;

/** A running service. */
export interface Server {
  /** Where it is reached. */
  readonly url: string;
  /** Adds tools of the embedding program, for one workspace root or for all, and returns the function that removes them. */
  register: Registry["register"];
  /** Adds hooks of the embedding program, under a name, and returns the function that removes them. */
  addHooks: HookChain["add"];
  /** Drains and stops: streams end so that clients resume, waiting calls are kept, running ones get `drainMs`. */
  close(): Promise<void>;
}

/** A store that was opened: `calls.close()` closes all of it. */
export interface Store {
  calls: CallStore;
  permissions: PermissionStore;
  outputs: OutputStore;
}

/** Opens the store that the configuration names. */
export function openStore({ store, dataDirectory }: Config, log: Logger): Promise<Store> {
  return store === "sqlite" ? openSqliteStore({ directory: dataDirectory, log }) : openRedisStore({ url: store, log });
}

/** Puts the parts together and starts them; `tools` come on top of the built-in ones, `open` opens the store. */
export async function startServer(
  config: Config,
  log: Logger,
  { tools = [], open = openStore }: { tools?: readonly Tool[]; open?: typeof openStore } = {},
): Promise<Server> {
  await checkRules(config, log);
  const rules = rulesOf(config.policy);
  const replicaId = randomUUID();
  const sandbox = await startSandbox(config, log);
  const store = await open(config, log);
  // What is kept in memory by Redis is kept smaller.
  const outputBytes =
    config.store === "sqlite" ? config.limits.outputBytes : Math.min(config.limits.outputBytes, redisOutputBytes);
  const telemetry = await createTelemetry({ log, version, tracing: config.tracing });
  const supervisor = createSupervisor({ replicaId, leaseMs: config.leaseMs });
  const pipes = createPipes();
  const { calls, permissions, sessions, planner, registry, hooks } = createReplica({
    config: { ...config, limits: { ...config.limits, outputBytes } },
    rules,
    store,
    replicaId,
    tools: [...builtInTools({ supervisor, sandbox, pipes }), ...tools],
    observer: telemetry.observer,
    log,
  });
  // It has to know those of files and plugins, too.
  const namesIn = (workspace: string) => registry.list(workspaceRoot(workspace)).map(({ name }) => name);
  registry.register([createInvalid({ namesIn })]);
  const { calls: callStore, permissions: asks, outputs } = store;
  const custom = await openCustomTools(config, registry, hooks, log).catch(async (error: unknown) => {
    await callStore.close();
    throw error;
  });
  const about = {
    version,
    workspaces: [...config.workspaces.keys()],
    sandbox: {
      sandbox: sandboxState(sandbox),
      sandboxNetwork: sandbox.state.network,
      sandboxProblem: sandbox.problem ?? "",
    },
    agentsOf: (principal: { agents: readonly string[] }) =>
      [...config.policy.agents]
        .filter(([agent]) => principal.agents.includes("*") || principal.agents.includes(agent))
        .map(([agent, { description }]) => ({ agent, description })),
    unattended: config.unattended,
    limits: create(LimitsSchema, {
      requestBytes: BigInt(config.limits.requestBytes),
      inputBytes: BigInt(config.limits.inputBytes),
      outputBytes: BigInt(outputBytes),
      timeoutMs: BigInt(config.limits.maxTimeoutMs),
      askMs: BigInt(config.askMs),
      openAsks: config.limits.openAsks,
      runningCalls: config.limits.runningCalls,
    }),
  };

  const policyDigest = digestOf(rules);
  let agrees = await callStore.agrees(policyDigest);

  const stopTimers = startTimers(
    [
      { every: 1_000, work: calls.recover },
      { every: config.leaseMs / 3, work: calls.renew },
      { every: 500, work: calls.supervise },
      { every: 500, work: calls.heedCancels },
      { every: 1_000, work: custom.refresh },
      { every: 10_000, work: comparePolicy },
      { every: 3_600_000, work: sweep },
    ],
    log,
  );

  /** Replicas that judge differently must not serve together: one that finds others is not ready. */
  async function comparePolicy(): Promise<void> {
    agrees = await callStore.agrees(policyDigest);
    if (!agrees) log.warn("replicas that share the store judge by another policy; this one is not ready");
  }

  async function sweep(): Promise<void> {
    const { outputs: gone } = await callStore.sweep();
    for (const { root, id } of gone) await outputs.remove(root, id);
  }

  const listener = await createListener({
    config,
    log,
    ready: callStore.ready,
    agrees: () => agrees,
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
        audit: createAuditReader({ calls: callStore, permissions: asks }),
        watcher: createWatcher({ store: callStore, asks, sessions }),
        store: callStore,
      });
      const watchMany = createWatchMany({ ...overTools, ...overPermissions }, errors);
      router.service(ToolService, { ...overTools, watchMany });
      router.service(PermissionService, overPermissions);
      router.service(SessionService, sessionService({ sessions, calls, store: callStore }));
    },
  });
  return {
    url: listener.url,
    register: registry.register,
    addHooks: hooks.add,
    async close() {
      await Promise.all([listener.close(config.drainMs), calls.drain(config.drainMs)]);
      await stopTimers();
      custom.close();
      await supervisor.close();
      await pipes.close();
      await telemetry.close();
      await callStore.close();
    },
  };
}

/** Loads the tools and plugins that are no part of the service; refuses to go on without a plugin, which may guard calls. */
async function openCustomTools(
  { file, workspaces, plugins, trustDirectory }: Config,
  registry: Registry,
  hooks: HookChain,
  log: Logger,
): Promise<CustomTools> {
  const user = dirname(file);
  const isOpen = [...workspaces.values()].some((root) => user === root || user.startsWith(`${root}/`));
  const [first = "/"] = workspaces.values();
  const custom = createCustomTools({
    places: [
      // What tools could write to is no place for tools.
      ...(isOpen ? [] : [{ folder: user }]),
      ...[...workspaces].map(([name, directory]) => ({
        folder: join(directory, ".opencode"),
        workspace: { name, directory },
      })),
    ],
    plugins,
    pluginInput: { directory: first, worktree: first },
    registry,
    hooks,
    modules: createModules(),
    trust: createTrust(trustDirectory),
    report: ({ path, line, reason }) =>
      log.warn("a tool or plugin file is not loaded as it is", { path, line, reason }),
  });
  await custom.refresh();
  const [problem] = custom.pluginProblems();
  if (!problem) return custom;
  custom.close();
  throw new ConfigError(
    `the plugin ${problem.path}, line ${problem.line}, cannot be loaded: ${problem.reason}; correct it, or take it out of "plugin" in ${file}`,
  );
}

/** Trusts the code in a workspace's `.opencode` as it is now, or no longer; returns the files of its tools. A running service heeds it. */
export async function trustWorkspace(
  trustDirectory: string,
  directory: string,
  remove: boolean,
): Promise<{ directory: string; tools: string[] }> {
  const trust = createTrust(trustDirectory);
  const folder = join(directory, ".opencode");
  const { entries, digest } = await readSources(folder, [folder]);
  if (remove) await trust.remove(directory);
  else await trust.set(directory, digest);
  return { directory, tools: remove ? [] : entries.map(({ path }) => join(".opencode", path)) };
}

/** One replica over a store, which it may share with others: everything but timers and the way in. */
export function createReplica({
  config,
  rules,
  store,
  replicaId,
  tools,
  observer,
  log,
}: {
  config: Pick<
    Config,
    "askMs" | "dataDirectory" | "file" | "leaseMs" | "limits" | "serviceDirectory" | "unattended" | "workspaces"
  > &
    Partial<Pick<Config, "experimental">>;
  rules: ConfiguredRules;
  store: Store;
  replicaId: string;
  tools: readonly Tool[];
  observer: CallObserver;
  log: Logger;
}) {
  const registry = createRegistry(config);
  registry.register(tools);

  const {
    calls: callStore,
    permissions: asks,
    outputs,
  } = tellingEnds(store, (part) => observer.ended({ part, isKnownTool: registry.knows(part.tool) }));
  const now = callStore.now;

  const hooks = createHooks();
  const agents = new Set([...builtInAgents.keys(), ...rules.agents.keys()]);
  const policy = createPolicy({
    guard: {
      dataDirectory: config.dataDirectory,
      configFile: config.file,
      ...(config.serviceDirectory !== undefined && { serviceDirectory: config.serviceDirectory }),
    },
    home: homedir(),
  });
  const workspaceRules = createWorkspaceRules({ home: homedir() });
  const layersFor = createLayers(rules, ({ workspace, directory, agent }) =>
    workspaceRules({ root: config.workspaces.get(workspace) ?? directory, directory }, agent),
  );
  const permissions = createPermissions({
    store: asks,
    policy,
    layersFor,
    now,
    newId: (prefix) => newId(prefix, now()),
    changes: {
      refuse: (part, reason, error) => failed(part, { reason, error }, now()),
      edit: createInputEdit({ registry, inputBytes: config.limits.inputBytes }),
      canonical: canonicalJson,
    },
  });
  const planning = createPlanning({ permissions, policy, layersFor, policyDigest: digestOf(rules) });
  const sessions = createSessions({ store: callStore, workspaces: Object.fromEntries(config.workspaces), agents });
  const executor = createExecutor({
    store: callStore,
    outputs,
    permissions,
    asksOf: asks.asksOf,
    planning,
    layersFor,
    registry,
    hooks,
    limits: { ...config.limits, askMs: config.askMs },
    unattended: config.unattended,
    observer,
    makeCalls: (...made) => calls.makeCalls(...made),
    log,
  });
  const calls: Calls = createCalls({
    store: callStore,
    outputs,
    sessions,
    permissions,
    asksOf: asks.asksOf,
    executor,
    registry,
    replicaId,
    limits: { ...config.limits, leaseMs: config.leaseMs },
    log,
  });
  const planner = createPlanner({
    sessions,
    planning,
    permissions,
    policy,
    layersFor,
    registry,
    hooks,
    store: callStore,
    askMs: config.askMs,
  });
  return { calls, permissions, sessions, planner, registry, hooks };
}

const redisOutputBytes = 64 * 1024 * 1024;

/**
 * Names what is configured: replicas that share a store must agree on it, and an approval is bound to it. What is built in
 * differs while a new version is rolled out, and the policy files of workspaces are read from the folders they share.
 */
function digestOf({ config, agents }: Parameters<typeof createLayers>[0]): string {
  const all = [plain(config), ...[...agents].map(([name, own]) => [name, plain(own)])];
  return createHash("sha256").update(canonicalJson(all)).digest("hex");
}

const plain = (rules: readonly Rule[]) => rules.map(({ permission, pattern, action }) => [permission, pattern, action]);

/** Refuses a policy whose own tests fail, and tells what in it looks wrong. */
async function checkRules({ policy, file, dataDirectory }: Config, log: Logger): Promise<void> {
  const findings = await checkPolicy(policy, { home: homedir(), dataDirectory });
  const lines = findings.map(({ severity, line, message }) => ({ severity, text: `${file}:${line ?? ""} ${message}` }));
  for (const { severity, text } of lines) if (severity === "warning") log.warn(text);
  const errors = lines.filter(({ severity }) => severity === "error");
  if (errors.length === 0) return;
  throw new ConfigError(
    `${errors.map(({ text }) => text).join("\n")}\ncorrect the rules or the tests, and check them with: toolgate check-config ${file}`,
  );
}

/** Where the configuration wants a sandbox and none can start, nothing starts; where it says nothing, the log and GetServerInfo say so. */
async function startSandbox(
  { sandbox: wanted, dataDirectory, serviceDirectory }: Config,
  log: Logger,
): Promise<Sandbox> {
  const isThere = serviceDirectory !== undefined && existsSync(serviceDirectory);
  const sandbox = await openSandbox({
    wanted,
    agents: wanted.agents,
    writable: wanted.writable,
    hidden: [
      { path: dataDirectory, kind: "folder" as const },
      ...(isThere ? [{ path: serviceDirectory, kind: "folder" as const }] : []),
      ...wanted.hidden.map((path) => ({ path, kind: "file" as const })),
    ],
  });
  if (sandbox.problem === undefined) return sandbox;
  if (wanted.required) throw new ConfigError(`the sandbox that is configured cannot start: ${sandbox.problem}`);
  log.warn(`commands run without a sandbox: ${sandbox.problem}`);
  return sandbox;
}

function sandboxState({ state, problem }: Sandbox): SandboxState {
  if (problem !== undefined) return SandboxState.UNAVAILABLE;
  if (state.profile === "off") return SandboxState.OFF;
  return state.profile === "read-only" ? SandboxState.READ_ONLY : SandboxState.WORKSPACE_WRITE;
}

/** Repeats work, never two rounds of the same at once; what fails is logged and tried again. Resolves when all have stopped. */
function startTimers(jobs: readonly { every: number; work: () => Promise<void> }[], log: Logger): () => Promise<void> {
  const stopped = new AbortController();
  const loops = jobs.map(async ({ every, work }) => {
    while (!stopped.signal.aborted) {
      await work().catch((error: unknown) => log.error("a background job failed and is tried again", { error }));
      await pause(every, stopped.signal);
    }
  });
  return async () => {
    stopped.abort();
    await Promise.all(loops);
  };
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done(): void {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}
