import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { DecisionKind, type DecisionRecord, PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type PolicyChangeSchema,
  type SimulatePolicyRequest,
  type SimulatePolicyResponse,
  SimulatePolicyResponseSchema,
  type SimulationSummarySchema,
} from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { assets } from "../core/assets.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { usesInput } from "../policy/condition.ts";
import type { FileRules } from "../policy/file-rules.ts";
import type { ConfiguredRules } from "../policy/layers.ts";
import type { LayerRules, Wall } from "../policy/model.ts";
import { type AuditSource, auditPages } from "./audit-pages.ts";
import type { PlanningParts } from "./decide.ts";
import { workspaceLists } from "./decision-facts.ts";
import { createTimeBudget } from "./line-analysis.ts";
import type { CallRecordReader } from "./ports.ts";
import { inputOf } from "./state.ts";

/** The data of the thread. */
export interface SimulationStart {
  candidate: string;
  rules: ConfiguredRules;
  digest: string;
  place: Pick<FileRules, "guard" | "home" | "connectorFiles">;
  /** Time for judging, in which the thread computes. */
  maxMs: number;
}

/** A sandbox, as data. */
export type WallData = Omit<Wall, "shown"> & { shown: readonly string[] };

/** Records for the thread, with what they need that it does not have. */
export interface SimulationBatch {
  /** Decisions on calls, and how people answered requests. */
  records: readonly Pick<
    DecisionRecord,
    "kind" | "sessionId" | "callId" | "agent" | "permissionIds" | "facts" | "settled"
  >[];
  /** Policy files of workspaces, by `placeKey`. */
  lists: readonly (readonly [key: string, lists: readonly LayerRules[]])[];
  /** The inputs of the calls of `records`, in their order, where conditions use them; undefined where none is stored any more. */
  inputs?: readonly (JsonObject | undefined)[];
  /** By agent. */
  walls: readonly (readonly [agent: string, wall: WallData])[];
}

/** The answers of the thread: to its start, to each batch, and to the end. */
export type SimulationAnswer =
  | { refused: string }
  | { usesInput: boolean }
  | { usedMs: number }
  | {
      usedMs: number;
      changes: MessageInitShape<typeof PolicyChangeSchema>[];
      summary: MessageInitShape<typeof SimulationSummarySchema>;
    };

/** Part of the reason why a decision of another version is not judged. */
export const decidedOtherwise = "decided otherwise by the same rules";

/** Names the subject of policy files. */
export const placeKey = (workspace: string, directory: string, agent: string) =>
  JSON.stringify([workspace, directory, agent]);

interface SimulationParts
  extends AuditSource,
    Pick<PlanningParts, "policy" | "layersFor" | "policyDigest" | "confines"> {
  rules: ConfiguredRules;
  getCall: CallRecordReader["getCall"];
  entry?: URL;
}

/** Judges recorded calls by other rules. */
export type Simulation = ReturnType<typeof createSimulation>;

const budgetMs = 10_000;
const windowMs = 60_000;
/** Time in which the thread has to answer: it may share its processor with many others. */
const maxAnswerMs = 60_000;
const maxDecisions = 100_000;
/** Inputs in one message: each can have the size of a whole input. */
const maxInputs = 50;
const progressMs = 1_000;
const maxHeapMb = 512;

/** Creates the simulation of a replica. Each run has a private thread, so that no candidate delays a call. */
export function createSimulation(parts: SimulationParts) {
  const budget = createTimeBudget(windowMs, () => performance.now());
  const running = new Set<string>();

  function take(principal: string): number {
    const left = budgetMs - budget.usedBy(principal);
    if (left > 0 && !running.has(principal)) return left;
    const why = left > 0 ? "runs a simulation already" : `used ${budgetMs / 1_000} s of simulation within a minute`;
    throw overBudget(`${principal} ${why}; wait, or take fewer days`);
  }

  return {
    async *simulate(
      principal: Principal,
      request: SimulatePolicyRequest,
      signal: AbortSignal,
    ): AsyncGenerator<SimulatePolicyResponse> {
      const maxMs = take(principal.id);
      const { policy, policyDigest, rules, entry = assets.simulateThread } = parts;
      const { guard, home, connectorFiles } = policy.fileRules({ wide: [], narrow: [] });
      const start: SimulationStart = {
        candidate: request.candidateToml,
        rules: { preset: rules.preset, config: rules.config, agents: rules.agents },
        digest: policyDigest(),
        ...{ place: { guard, home, connectorFiles }, maxMs },
      };
      const thread = startThread(entry, start, signal);
      running.add(principal.id);
      let usedMs = 0;
      try {
        const ready = await thread.answer();
        if ("refused" in ready) throw new RequestError(ErrorReason.POLICY_REFUSED, ready.refused);
        let [count, told] = [0, performance.now()];
        const needsInput = "usesInput" in ready && ready.usesInput;
        for await (const batch of withInputs(batchesOf(parts, principal, request), parts, needsInput)) {
          count += batch.records.filter(({ facts }) => facts !== undefined).length;
          const done = await thread.ask(batch);
          usedMs = "usedMs" in done ? done.usedMs : usedMs;
          if (performance.now() - told < progressMs) continue;
          told = performance.now();
          yield create(SimulatePolicyResponseSchema, { kind: { case: "progress", value: { decisions: count } } });
        }
        const end = await thread.ask(undefined);
        if (!("summary" in end)) throw new Error("the thread of a simulation gave no summary");
        usedMs = end.usedMs;
        for (const value of end.changes)
          yield create(SimulatePolicyResponseSchema, { kind: { case: "change", value } });
        yield create(SimulatePolicyResponseSchema, { kind: { case: "summary", value: end.summary } });
      } finally {
        running.delete(principal.id);
        budget.spend(principal.id, usedMs);
        await thread.end();
      }
    },
  };
}

const overBudget = (message: string) =>
  new RequestError(ErrorReason.QUOTA_EXCEEDED, message, { limit: "simulation_ms" });

/** Reads the records of the audit, those of the newest session trees first. */
async function* batchesOf(
  parts: SimulationParts,
  principal: Principal,
  { from, to, maxDecisions: wanted, agent }: SimulatePolicyRequest,
): AsyncGenerator<SimulationBatch> {
  const [places, agents] = [new Set<string>(), new Set<string>()];
  let left = wanted || maxDecisions;
  for await (const entries of auditPages(parts, principal)) {
    const records = entries.flatMap(({ record, time }) => {
      if (!record || (agent !== "" && record.agent !== agent)) return [];
      if (record.kind === DecisionKind.SETTLED) return isAnswer(record) ? [record] : [];
      if (!decides.has(record.kind) || record.permissionIds.length > 0 !== (record.kind === DecisionKind.ASKED))
        return [];
      if (time < from || (to > 0 && time >= to) || left === 0) return [];
      left -= 1;
      return [record];
    });
    yield newIn(parts, records, places, agents);
    if (left === 0) return;
  }
}

const decides: ReadonlySet<DecisionKind> = new Set([DecisionKind.ALLOWED, DecisionKind.DENIED, DecisionKind.ASKED]);

/** Checks if a person answered the request itself. */
function isAnswer({ settled }: DecisionRecord): boolean {
  return settled !== undefined && settled.by !== "" && settled.settledWith === "" && answers.has(settled.outcome);
}

const answers: ReadonlySet<PermissionOutcome> = new Set([
  ...[PermissionOutcome.ONCE, PermissionOutcome.ALWAYS, PermissionOutcome.REJECT],
]);

/** Adds the policy files and sandboxes that records name first. */
function newIn(
  { layersFor, confines }: Pick<SimulationParts, "layersFor" | "confines">,
  records: SimulationBatch["records"],
  places: Set<string>,
  agents: Set<string>,
): SimulationBatch {
  const lists: [string, LayerRules[]][] = [];
  const walls: [string, WallData][] = [];
  for (const { facts, agent } of records) {
    if (!facts) continue;
    const { workspace, directory } = facts;
    const key = placeKey(workspace, directory, agent);
    if (!places.has(key))
      lists.push([key, workspaceLists(layersFor({ session: undefined, ancestors: [], agent, workspace, directory }))]);
    const wall = agents.has(agent) ? undefined : confines?.(agent);
    if (wall) walls.push([agent, { ...wall, shown: wall.shown() }]);
    places.add(key);
    agents.add(agent);
  }
  return { records, lists, walls };
}

/** Adds the inputs of calls, in smaller batches, once a condition uses them. */
async function* withInputs(
  batches: AsyncIterable<SimulationBatch>,
  { getCall }: Pick<SimulationParts, "getCall">,
  needsInput: boolean,
): AsyncGenerator<SimulationBatch> {
  let isNeeded = needsInput;
  for await (const { records, ...added } of batches) {
    isNeeded ||= added.lists.some(([, lists]) => lists.some(({ rules }) => rules.some(({ when }) => usesInput(when))));
    if (!isNeeded) {
      yield { records, ...added };
      continue;
    }
    // At least one, for what else the batch has.
    for (let from = 0; from === 0 || from < records.length; from += maxInputs) {
      const some = records.slice(from, from + maxInputs);
      const inputs = await Promise.all(
        some.map(async ({ facts, sessionId, callId }) => {
          const call = facts && (await getCall(sessionId, callId));
          // Which of its inputs an edited call was decided with is not recorded.
          return call && call.part.originalInput === undefined ? inputOf(call.part) : undefined;
        }),
      );
      yield { ...(from === 0 ? added : { lists: [], walls: [] }), records: some, inputs };
    }
  }
}

/** A thread that answers one message at a time. */
function startThread(entry: URL, workerData: SimulationStart, signal: AbortSignal) {
  const worker = new Worker(entry, {
    ...{ workerData, env: {}, execArgv: [] },
    resourceLimits: { maxOldGenerationSizeMb: maxHeapMb },
  });
  // It must not keep the process alive.
  worker.unref();
  const { promise: failed, reject: fail } = Promise.withResolvers<never>();
  // Also while no answer is awaited: an error that nobody hears would end the service.
  worker.once("error", fail);
  failed.catch(() => {});
  async function answer(): Promise<SimulationAnswer> {
    const late = AbortSignal.timeout(maxAnswerMs);
    try {
      const answered = once(worker, "message", { signal: AbortSignal.any([signal, late]) });
      const [message] = await Promise.race([answered, failed]);
      return message;
    } catch (cause) {
      signal.throwIfAborted();
      const isFull = cause instanceof Error && "code" in cause && cause.code === "ERR_WORKER_OUT_OF_MEMORY";
      if (!late.aborted && !isFull) throw cause;
      const why = isFull ? "takes more memory than a simulation may" : `takes longer than ${maxAnswerMs / 1_000} s`;
      throw new RequestError(
        ErrorReason.QUOTA_EXCEEDED,
        `judging by the candidate ${why}; make its rules simpler, or take fewer days`,
        { limit: "simulation_ms" },
        { cause },
      );
    }
  }
  return {
    answer,
    async ask(batch: SimulationBatch | undefined): Promise<SimulationAnswer> {
      const answered = answer();
      worker.postMessage(batch);
      return await answered;
    },
    async end(): Promise<void> {
      await worker.terminate();
    },
  };
}
