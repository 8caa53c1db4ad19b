import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createPermissions } from "../approval/permissions.ts";
import type { Electorate, ReceiptCheck } from "../approval/votes.ts";
import { createWorkers, type Workers } from "../bodies/workers/workers.ts";
import { createCalls } from "../call/calls.ts";
import type { CrashMarks } from "../call/crash-marks.ts";
import { createPlanning, type PlanningParts } from "../call/decide.ts";
import type { RemoteTools, Stops } from "../call/engine.ts";
import { createLineAnalysis } from "../call/line-analysis.ts";
import { type CallObserver, notifyEnds } from "../call/observer.ts";
import { createPlanner } from "../call/planner.ts";
import type { Store } from "../call/ports.ts";
import { createToolJudge } from "../call/prepare.ts";
import { createRuleReview } from "../call/rule-review.ts";
import { createSessions } from "../call/sessions.ts";
import { createInputEdit } from "../call/settle.ts";
import { createShadowFailures } from "../call/shadow.ts";
import { createSimulation } from "../call/simulation.ts";
import { failed } from "../call/state.ts";
import { noStops } from "../call/stops.ts";
import type { Config } from "../config/config.ts";
import { newId } from "../core/ids.ts";
import type { Logger } from "../core/logger.ts";
import type { Credentials } from "../people/credentials.ts";
import { builtInAgents } from "../policy/agents.ts";
import { isForeignPermission, knownPermissions } from "../policy/known-permissions.ts";
import type { ConfiguredRules } from "../policy/layers.ts";
import type { NoticeSender } from "../reach/ports.ts";
import type { ServiceStore } from "../store/record-tables.ts";
import { boundTool } from "../tool/define-tool.ts";
import { createHooks } from "../tool/hooks.ts";
import { byName, createRegistry } from "../tool/registry.ts";
import type { DefinedTool, Tool } from "../tool/tool.ts";
import { createForeignTools } from "../tools/foreign/foreign-tools.ts";
import { codeFiles } from "../tools/fs/ripgrep.ts";
import { createConditionCheck, createPolicyParts, type PolicyConfig } from "./policy.ts";

/** The settings of a replica. */
export type ReplicaConfig = PolicyConfig &
  Pick<Config, "askMs" | "leaseMs" | "unattended" | "limits"> &
  Partial<Pick<Config, "plainAlways" | "experimental">>;

/** One replica over a store that it may share with others: everything except timers and the network. */
export type Replica = ReturnType<typeof createReplica>;

/** Composes a replica. */
export function createReplica({
  config,
  rules,
  connectorFiles = () => [],
  store,
  replicaId,
  tools,
  gitNames,
  confines,
  crashMarks,
  observer,
  remoteTools,
  agreesOnPolicy = () => true,
  stops = noStops,
  notices,
  groupsNow,
  delegatorsOf,
  receipts,
  log,
}: {
  config: ReplicaConfig;
  rules: ConfiguredRules;
  /** Returns the files that connectors of agents wrote, which policy protects. */
  connectorFiles?: () => readonly string[];
  store: Store;
  replicaId: string;
  /** The built-in tools. */
  tools: readonly DefinedTool[];
  gitNames?: PlanningParts["gitNames"];
  confines?: PlanningParts["confines"];
  crashMarks: CrashMarks;
  observer: CallObserver;
  /** Tools whose bodies workers run. */
  remoteTools?: RemoteTools | undefined;
  agreesOnPolicy?: () => boolean;
  stops?: Stops;
  notices?: NoticeSender | undefined;
  receipts?: ReceiptCheck;
  log: Logger;
  // Absent: the groups that a person had when they answered, and no delegates.
} & Partial<Electorate>) {
  const registry = createRegistry(config, createConditionCheck(rules, log));
  const builtIn = tools.map(boundTool);
  registry.register(byName(builtIn));
  const hooks = createHooks();
  const foreign = createForeignTools();
  const isKnownTool = ({ tool }: ToolPart) => registry.knows(tool) || foreign.isMapped(tool);
  const {
    calls: callStore,
    permissions: asks,
    outputs,
  } = notifyEnds(
    store,
    (part) => {
      observer.ended({ part, isKnownTool: isKnownTool(part) });
      calls.ended(part);
    },
    ({ part, ms }) => observer.waited({ part, isKnownTool: isKnownTool(part), ms }),
  );
  const now = callStore.now;
  const { policy, layersFor, shadowFor, policyDigest, placeOf } = createPolicyParts(config, rules, connectorFiles);
  const permissions = createPermissions({
    store: asks,
    plainAlways: config.plainAlways ?? "narrowest",
    approvals: () => rules.approvals,
    ...(groupsNow && { groupsNow }),
    ...(delegatorsOf && { delegatorsOf }),
    receipts,
    escalationsOf: notices?.escalationsOf,
    policy,
    now,
    newId: (prefix) => newId(prefix, now()),
    effects: {
      fail: (part, reason, error) => failed(part, { reason, error }, now()),
      replaceInput: createInputEdit({ registry, foreign, inputBytes: config.limits.inputBytes }),
    },
  });
  const lines = createLineAnalysis({ log });
  const planning = createPlanning({
    ...{ permissions, policy, layersFor, policyDigest, lines, listFiles: codeFiles },
    shadow: { layersFor: shadowFor, count: observer.differed, failed: createShadowFailures(log) },
    ...(gitNames && { gitNames }),
    ...(confines && { confines }),
  });
  const agents = new Set<string>();
  /** Takes the names of the agents from the rules in force. */
  function nameAgents(): void {
    agents.clear();
    for (const name of [...builtInAgents.keys(), ...rules.agents.keys()]) agents.add(name);
  }
  nameAgents();
  const sessions = createSessions({ store: callStore, workspaces: Object.fromEntries(config.workspaces), agents });
  const calls = createCalls({
    store: callStore,
    outputs,
    sessions,
    asksOf: asks.asksOf,
    listAsks: asks.openAsks,
    countLongAsks: asks.countLongAsks,
    getAsk: asks.getAsk,
    settle: asks.settle,
    takeGrant: asks.takeGrant,
    agreesOnPolicy,
    stops,
    ...planning,
    registry,
    effectFree: new Set(builtIn.filter(isEffectFree)),
    readOnlyTools: new Set(builtIn.filter(({ definition }) => definition.annotations?.readOnly === true)),
    crashMarks,
    foreign,
    remoteTools,
    hooks,
    observer,
    limits: { ...config.limits, askMs: config.askMs, leaseMs: config.leaseMs },
    unattended: config.unattended,
    replicaId,
    notices,
    log,
  });
  const planner = createPlanner({
    ...planning,
    sessions,
    registry,
    foreign,
    hooks,
    stops,
    store: callStore,
    placeOf,
    askMs: config.askMs,
  });
  /** Evaluates the configured rules for an agent, apart from any session; those of a workspace too if it is named. */
  const judgeFor = (agent: string, place: { workspace: string; directory: string } | object = {}) =>
    createToolJudge(policy, () => layersFor({ session: undefined, ancestors: [], agent, ...place }));
  const past = { sessions, listDecisions: asks.listDecisions, listAudits: asks.listAudits };
  const simulation = createSimulation({ ...planning, ...past, rules, getCall: callStore.getCall });
  const review = createRuleReview({ ...past, findAsk: asks.findAsk, planner, now });
  return {
    ...{ calls, lines, permissions, sessions, planner, simulation, review, registry, hooks, agents, nameAgents },
    judgeFor,
  };
}

function isEffectFree({ definition: { annotations }, idempotent }: Tool): boolean {
  return idempotent && annotations?.readOnly === true && !annotations.openWorld;
}

/** Composes the workers of a replica; the tools of those that were connected before are registered. */
export function startWorkers(
  { workspaces, limits }: Pick<Config, "workspaces" | "limits">,
  {
    replica: { calls, registry },
    replicaId,
    store,
    credentials,
    builtIn,
    log,
  }: {
    replica: Replica;
    replicaId: string;
    store: ServiceStore;
    credentials: Pick<Credentials, "principalWithId">;
    builtIn: readonly Tool[];
    log: Logger;
  },
): Workers {
  const closed = new Set([...knownPermissions(builtIn), ...builtIn.map(({ name }) => name), ...alwaysClosed]);
  return createWorkers({
    ...{ registry, calls, log },
    ...{ declarations: store.workerDeclarations, workerDirectory: store.workerDirectory, replicaId },
    rightsOf: (principal) => credentials.principalWithId(principal)?.worker,
    // A name with a wildcard would read like a rule for others.
    isClosed: (permission) => closed.has(permission) || isForeignPermission(permission) || /[*?]/.test(permission),
    workspaces: [...workspaces.keys()],
    storeId: () => store.calls.storeId,
    verifyStoreId: () => store.calls.verifyIds(),
    beatMs: limits.runnerBeatMs,
    now: store.calls.now,
  });
}

/** Permissions of the service that no tool of this configuration may ask. */
const alwaysClosed = ["bash", "edit", "read", "list", "glob", "grep", "lsp", "webfetch", "task", "question"];

/** Returns the parts with which a replica serves calls of workers, which are composed after it. */
export function workerParts(
  workers: () => Workers,
  observer: CallObserver,
): { observer: CallObserver; remoteTools: RemoteTools } {
  return {
    observer: {
      ...observer,
      ended(end) {
        observer.ended(end);
        workers().ended(end.part);
      },
    },
    remoteTools: {
      find: (definitionId, workspace) => workers().tool(definitionId, workspace),
      isServed: (definitionId) => workers().isServed(definitionId),
      onOrphan: (call, mark) => workers().orphan(call, mark),
    },
  };
}
