import { hash } from "node:crypto";
import { parentPort, workerData } from "node:worker_threads";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import {
  DecisionKind,
  PermissionAction,
  type PermissionDecision,
  PermissionOutcome,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PolicyChangeSchema, SimulationSummarySchema } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { judgeAsks, type Verdict } from "../approval/judge-asks.ts";
import { createFileHashes } from "../call/bound-files.ts";
import { rulesId } from "../call/decision-facts.ts";
import { type Repeatable, type ReplayParts, repeatable } from "../call/repeat-decision.ts";
import {
  decidedOtherwise,
  placeKey,
  type SimulationAnswer,
  type SimulationBatch,
  type SimulationStart,
  type WallData,
} from "../call/simulation.ts";
import { readCandidate } from "../config/policy.ts";
import { visibleLine } from "../core/visible.ts";
import { usesInput } from "../policy/condition.ts";
import { displayPattern } from "../policy/display.ts";
import { type ConfiguredRules, createLayers } from "../policy/layers.ts";
import type { LayerRules, Wall } from "../policy/model.ts";
import { strictestOf } from "../policy/opinion.ts";
import { createPolicy } from "../policy/policy.ts";
import { readWholeLine } from "../policy/risk.ts";
import { type ActionName, actions } from "../policy/rules.ts";
import type { Readings } from "../policy/shell/command.ts";
import { version } from "./server-info.ts";

// Thread of `createSimulation`: judges the records of each batch by the rules in force and by the candidate.

type Change = MessageInitShape<typeof PolicyChangeSchema>;
type Summary = MessageInitShape<typeof SimulationSummarySchema>;

/** Decisions that change alike. */
interface Group extends Required<Pick<Change, "before" | "after" | "old" | "new" | "agent">> {
  decisions: number;
  rejected: number;
  approved: number;
  examples: Set<string>;
}

/** A changed decision that opened requests, with what people said to it. */
interface Asked {
  readonly group: Group;
  said: "rejected" | "approved" | undefined;
}

/** Counts an answer of a person: a decision with several requests counts once, and as rejected if one of them was. */
function say(decision: Asked, said: "rejected" | "approved"): void {
  const { group, said: before } = decision;
  if (before === said || before === "rejected") return;
  if (before !== undefined) group[before] -= 1;
  group[said] += 1;
  decision.said = said;
}

/** The result for equal decisions. */
type Outcome = { why: string; example?: string } | { unfaithful: string } | { before: Verdict; after: Verdict };

const maxChanges = 500;
const maxReason = 2_000;
const maxExamples = 5;
const maxExampleLength = 200;

const { ALLOW, ASK, DENY } = PermissionAction;

function createSimulator({ rules, digest, place, maxMs }: SimulationStart, candidate: ConfiguredRules) {
  const policy = createPolicy({ guard: place.guard, home: place.home, connectorFiles: () => place.connectorFiles });
  const lists = new Map<string, readonly LayerRules[]>();
  const walls = new Map<string, Wall>();
  const known = new Map<string, Outcome>();
  const seen = new Set<string>();
  const groups = new Map<string, Group>();
  /** The changed decisions by their requests, which people may have answered. */
  const asked = new Map<string, Asked>();
  const notJudged = new Map<string, { decisions: number; example: string | undefined }>();
  const summary = { decisions: 0, judged: 0, changed: 0, widened: 0, asksSaved: 0, asksAdded: 0, leftOut: 0 };
  const unfaithful = { unfaithful: 0, unfaithfulExample: "" };
  const readLines = createLineReader();
  const began = computedMs();
  const usedMs = () => computedMs() - began;
  const parts: ReplayParts = {
    hashes: createFileHashes(),
    lines: { read: async (_, lines) => readLines(lines), charge() {} },
    permissions: { decide: (asks, subject, by) => judgeAsks({ store: noGrants, policy }, asks, subject, by) },
    layersFor: () => ({ wide: [], narrow: [] }),
    policyDigest: () => digest,
    ...{ policy, place },
    wall: (agent) => walls.get(agent),
  };
  const filesOf = ({ workspace, directory, agent }: { workspace: string; directory: string; agent: string }) => [
    ...(lists.get(placeKey(workspace, directory, agent)) ?? []),
  ];
  const [layersNow, layersThen] = [createLayers(rules, filesOf), createLayers(candidate, filesOf)];

  async function outcomeOf(
    { agent, facts }: SimulationBatch["records"][number],
    input: JsonObject | undefined,
  ): Promise<Outcome> {
    if (!facts) return { why: "its record has no facts: an earlier version wrote it, or no rule decided" };
    const { version, rules: by, place: where, action, workspace, directory, recorded } = facts;
    const key = hash(
      "sha256",
      JSON.stringify([agent, version, by, where, action, workspace, directory, recorded, input]),
    );
    const before = known.get(key);
    if (before) return before;
    const found = repeatable(parts, agent, facts, input);
    const outcome = typeof found === "string" ? { why: found } : await judge(found, facts);
    known.set(key, outcome);
    return outcome;
  }

  async function judge(
    decision: Repeatable,
    facts: NonNullable<SimulationBatch["records"][number]["facts"]>,
  ): Promise<Outcome> {
    const layers = layersNow(decision.subject);
    const before = await decision.by(layers);
    if (typeof before === "string") return { why: `${before} is not recorded` };
    if (facts.rules === rulesId(digest, layers) && before.action !== facts.action) {
      const [was, is] = [facts.action, before.action].map((one) =>
        Object.keys(actions).find((name) => actions[name as ActionName] === one),
      );
      const { permission = "", pattern = "" } = strictestOf(before.decisions) ?? {};
      const text = `${permission} ${example(permission, pattern)} was ${was}, and is ${is} when it is repeated`;
      if (facts.version === version) return { unfaithful: text };
      return { why: `version ${facts.version} ${decidedOtherwise}`, example: text };
    }
    const after = await decision.by(layersThen(decision.subject));
    return typeof after === "string" ? { why: `${after} is not recorded` } : { before, after };
  }

  function count(record: SimulationBatch["records"][number], outcome: Outcome): void {
    if ("why" in outcome) {
      const { decisions, example } = notJudged.get(outcome.why) ?? { decisions: 0, example: outcome.example };
      notJudged.set(outcome.why, { decisions: decisions + 1, example });
    }
    if ("unfaithful" in outcome) {
      unfaithful.unfaithful += 1;
      unfaithful.unfaithfulExample ||= outcome.unfaithful;
    }
    if (!("before" in outcome)) return;
    summary.judged += 1;
    const { before, after } = outcome;
    if (before.action === after.action) return;
    summary.changed += 1;
    if (after.action < before.action) summary.widened += 1;
    if (before.action === ASK) summary.asksSaved += 1;
    if (after.action === ASK) summary.asksAdded += 1;
    const [old, next] = [strictestOf(before.decisions), strictestOf(after.decisions)];
    if (!old || !next) return;
    const key = JSON.stringify([
      before.action,
      after.action,
      record.agent,
      old.permission,
      placeOf(old),
      placeOf(next),
    ]);
    const group = groups.get(key) ?? {
      ...{ before: before.action, after: after.action, old, new: next, agent: record.agent },
      ...{ decisions: 0, rejected: 0, approved: 0, examples: new Set<string>() },
    };
    groups.set(key, group);
    group.decisions += 1;
    const { permission, pattern } = after.action < before.action ? old : next;
    if (group.examples.size < maxExamples) group.examples.add(example(permission, pattern));
    const decision: Asked = { group, said: undefined };
    for (const id of record.permissionIds) asked.set(id, decision);
  }

  return {
    async take({ records, inputs, ...added }: SimulationBatch): Promise<void> {
      for (const [key, of] of added.lists) lists.set(key, of);
      for (const [agent, wall] of added.walls) walls.set(agent, wallOf(wall));
      for (const [at, record] of records.entries()) {
        if (record.kind === DecisionKind.SETTLED) {
          const decision = record.settled && asked.get(record.settled.permissionId);
          if (decision) say(decision, record.settled?.outcome === PermissionOutcome.REJECT ? "rejected" : "approved");
          continue;
        }
        // A call that was asked for again, or let go on by a grant, is decided once.
        const call = JSON.stringify([record.sessionId, record.callId, record.facts?.recorded]);
        if (seen.has(call)) continue;
        seen.add(call);
        summary.decisions += 1;
        if (usedMs() > maxMs) summary.leftOut += 1;
        else count(record, await outcomeOf(record, inputs?.[at]));
      }
    },
    usedMs,
    end(): { changes: Change[]; summary: Summary } {
      const found = [...groups.values()].toSorted(
        (one, other) => rank(one) - rank(other) || other.decisions - one.decisions,
      );
      return {
        changes: found.slice(0, maxChanges).map((group) => ({ ...group, examples: [...group.examples] })),
        summary: {
          ...summary,
          ...unfaithful,
          notJudged: [...notJudged].map(([why, { decisions, example }]) => ({
            reason: example === undefined ? why : `${why}, such as ${example}`,
            decisions,
          })),
          moreChanges: Math.max(0, found.length - maxChanges),
          rules: rulesId(digest, { wide: [], narrow: [] }),
        },
      };
    },
  };
}

/** Orders changes: first what people rejected and what was denied and would be allowed, last what would be denied. */
function rank({ before, after, rejected }: Group): number {
  if (after === ALLOW) return rejected > 0 ? 0 : before === DENY ? 1 : 2;
  if (after < before) return 3;
  return after === ASK ? 4 : 5;
}

const placeOf = ({ layer, ruleIndex, reasonCode }: PermissionDecision) => [layer, ruleIndex, reasonCode];

function example(permission: string, pattern: string): string {
  const text = visibleLine(displayPattern(permission, pattern));
  return text.length > maxExampleLength ? `${text.slice(0, maxExampleLength)}…` : text;
}

const wallOf = ({ shown, ...wall }: WallData): Wall => ({ ...wall, shown: () => shown });

/** Creates the reader of command lines: both policies use one reading. */
function createLineReader() {
  let [last, readings]: [key: string, readings: Readings] = ["", new Map()];
  return (lines: readonly string[]): Readings => {
    const key = JSON.stringify(lines);
    if (key !== last) [last, readings] = [key, new Map(lines.flatMap((line) => [...readWholeLine(line)]))];
    return readings;
  };
}

/** Returns the time for which this thread has computed, in ms. */
function computedMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
}

const noGrants = {
  grantsFor: async () => ({ grants: [], rulesVersion: 0, asksVersion: 0 }),
  adoptGrant: async () => false,
};

function send(answer: SimulationAnswer): void {
  parentPort?.postMessage(answer);
}

/** Reads the candidate; returns the reason if it cannot be read. */
function candidateOf({ candidate, place: { home } }: SimulationStart): ConfiguredRules | string {
  try {
    return readCandidate(candidate, "the candidate", home);
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** Checks if a rule has a condition on the input. */
function conditionsUseInput({ preset, config, agents }: ConfiguredRules): boolean {
  return [preset?.rules ?? [], config, ...agents.values()].flat().some(({ when }) => usesInput(when));
}

const data: SimulationStart = workerData;
const candidate = candidateOf(data);
if (typeof candidate === "string") send({ refused: candidate.slice(0, maxReason) });
else {
  const simulator = createSimulator(data, candidate);
  parentPort?.on("message", async (batch: SimulationBatch | undefined) => {
    if (batch) await simulator.take(batch);
    send({ usedMs: simulator.usedMs(), ...(batch === undefined && simulator.end()) });
  });
  send({ usesInput: [data.rules, candidate].some(conditionsUseInput) });
}
