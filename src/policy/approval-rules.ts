import { create } from "@bufbuild/protobuf";
import {
  AnswerMethod,
  type ApprovalNeed,
  ApprovalNeedSchema,
  type ApprovalRequirement,
  ApprovalRequirementSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { questionPermission } from "../core/ask.ts";
import { createMatchSteps, type ExpandedAsk, type MatchSteps, type Subject, TooManySteps } from "./model.ts";
import { hasUnsearched, risksShown } from "./risk.ts";
import { type CompiledRules, type RuleList, targetOf } from "./rule-list.ts";
import type { Rule } from "./rules.ts";
import { type Command, readCommandOf } from "./shell/command.ts";
import { wildcard } from "./wildcard.ts";

/** An entry of `[[approval]]`. As a rule it asks, so that it matches what a rule that asks would match. */
export interface ApprovalRule extends Rule {
  /** Kinds of risk of which the ask has one; empty: any ask. */
  readonly risks: readonly RiskKind[];
  readonly agent: string;
  readonly workspace: string;
  /** The requirements of the entry and of its `also`; each has to be met. */
  readonly all: readonly { readonly approve: number; readonly from: readonly string[] }[];
  /** The number of persons whose rejection settles a request. */
  readonly reject: number;
  readonly reasonRequired: boolean;
  readonly shownRequired: boolean;
  /** The least proof of the person. */
  readonly method: AnswerMethod;
  readonly otherPerson: boolean;
  /** Time for which a request stays open; absent: as any other. */
  readonly askMs?: number | undefined;
  /** False: no grant can be saved. */
  readonly always: boolean;
  /** The number of further calls that a grant covers at most; absent: any. */
  readonly times?: number | undefined;
  /** Groups and channels that an open request adds after a time, the earliest first; the groups count in the first requirement. */
  readonly escalate: readonly ApprovalStep[];
}

/** A step of an open request. */
export interface ApprovalStep {
  readonly afterMs: number;
  readonly to: readonly string[];
  readonly channels: readonly string[];
}

/** The entries in order, and the groups that they name. */
export interface ConfiguredApprovals {
  readonly rules: readonly ApprovalRule[];
  /** Who is in the groups, as configured. An approval does not outlive a change of it. */
  readonly groups: readonly object[];
}

/** What the entries say of one ask. */
export interface NeededApproval {
  readonly need: ApprovalNeed;
  /** Steps, each with the requirement to which it belongs, the earliest first. */
  readonly escalate: readonly (ApprovalStep & { readonly requirement: number })[];
  readonly askMs?: number | undefined;
  readonly always: boolean;
  readonly times?: number | undefined;
}

/**
 * Returns what has to be approved by whom; undefined if no entry matches. Each pattern of the ask takes the first entry that matches
 * it, and the ask what the strictest of them say together. A command line that was not understood may be any command, so it also
 * takes each entry that comes before and might match. Questions are answered, not approved.
 */
export function neededApproval(
  compiled: CompiledRules,
  { rules }: ConfiguredApprovals,
  ask: ExpandedAsk,
  { agent, workspace }: Pick<Subject, "agent" | "workspace">,
): NeededApproval | undefined {
  if (rules.length === 0 || ask.permission === questionPermission) return undefined;
  const isOf = (rule: ApprovalRule) =>
    wildcard(agent, rule.agent) && wildcard(workspace, rule.workspace) && wildcard(ask.permission, rule.permission);
  const candidates = rules.map((rule, index) => ({ rule, index })).filter(({ rule }) => isOf(rule));
  if (candidates.length === 0) return undefined;
  const dependsOnRisk = candidates.some(({ rule }) => rule.risks.length > 0);
  const kinds = new Set(dependsOnRisk ? risksShown(ask).map(({ kind }) => kind) : []);
  const mayHaveAny = dependsOnRisk && hasUnsearched(ask);
  const hasRisk = ({ risks }: ApprovalRule) =>
    risks.length === 0 || mayHaveAny || risks.some((kind) => kinds.has(kind));
  const [list, steps] = [compiled(rules), createMatchSteps()];
  const { line = "", patterns } = ask;
  // The line as a whole counts beside its commands, as it does for rules.
  const whole = patterns.length > 1 && line !== "" ? matchesOfTexts(list, ask, [line], 0, steps) : none;
  const ofPatterns = patterns.length === 0 ? [unsure] : patterns.map((_, at) => matchesOfPattern(list, ask, at, steps));
  const beyond = [...whole.certain].filter((index) => rules[index]?.pattern !== "*");
  const found = [...ofPatterns, { ...whole, certain: new Set(beyond) }].flatMap(({ certain, isSure }) => {
    const first = candidates.findIndex(({ rule, index }) => certain.has(index) && hasRisk(rule));
    if (isSure) return first < 0 ? [] : candidates.slice(first, first + 1);
    return first < 0 ? candidates : candidates.slice(0, first + 1);
  });
  const entries = [...new Set(found.map(({ rule }) => rule))];
  return entries.length === 0 ? undefined : strictestOfAll(entries);
}

/** The entries that match a text, by their index. It is unsure where the ask may be anything else. */
interface Matches {
  certain: ReadonlySet<number>;
  isSure: boolean;
}

const none: Matches = { certain: new Set(), isSure: true };
const unsure: Matches = { certain: new Set(), isSure: false };

/** Finds the entries whose pattern matches one of an ask's patterns; of a command those that match any spelling of it. */
function matchesOfPattern(list: RuleList, ask: ExpandedAsk, at: number, steps: MatchSteps): Matches {
  const { permission, patterns, line, readings } = ask;
  const pattern = patterns[at] ?? "";
  if (permission !== "bash") return matchesOfTexts(list, ask, [pattern], at, steps);
  const commands = allCommands(readCommandOf(pattern, line ?? pattern, readings));
  const texts = new Set([pattern, ...commands.flatMap(({ text, bare, spellings }) => [text, bare, ...spellings])]);
  const matches = matchesOfTexts(list, ask, [...texts], at, steps);
  return commands.some(({ opaque }) => opaque !== undefined) ? { ...matches, isSure: false } : matches;
}

function matchesOfTexts(
  list: RuleList,
  { permission, paths }: ExpandedAsk,
  texts: readonly string[],
  at: number,
  steps: MatchSteps,
): Matches {
  try {
    const matched = texts.flatMap((text) => list.all(targetOf(permission, text, paths?.[at]), steps));
    return { certain: new Set(matched.map(({ index }) => index)), isSure: true };
  } catch (cause) {
    if (cause instanceof TooManySteps) return unsure;
    throw cause;
  }
}

function allCommands(commands: readonly Command[]): Command[] {
  return commands.flatMap((command) => [command, ...allCommands(command.inner)]);
}

/** Joins entries: all their requirements, the smallest number of rejections, the shortest time, the fewest calls of a grant. */
function strictestOfAll(entries: readonly ApprovalRule[]): NeededApproval {
  const all = new Map<string, ApprovalRequirement & Pick<ApprovalRule, "escalate">>();
  for (const entry of entries) {
    for (const [place, { approve, from }] of entry.all.entries()) {
      const escalate = place === 0 ? entry.escalate : [];
      // What one entry lets others approve later, another one that names the same groups may not.
      const key = JSON.stringify([from, escalate]);
      const most = Math.max(approve, all.get(key)?.approve ?? 0);
      all.set(key, { ...create(ApprovalRequirementSchema, { approve: most, from: [...from] }), escalate });
    }
  }
  const least = (values: readonly number[]) => (values.length === 0 ? undefined : Math.min(...values));
  return {
    need: create(ApprovalNeedSchema, {
      all: [...all.values()].map(({ escalate: _, ...each }) => each),
      reject: Math.min(...entries.map(({ reject }) => reject)),
      reasonRequired: entries.some(({ reasonRequired }) => reasonRequired),
      shownRequired: entries.some(({ shownRequired }) => shownRequired),
      method: entries.reduce(
        (least: AnswerMethod, { method }) => (method > least ? method : least),
        AnswerMethod.UNSPECIFIED,
      ),
      otherPerson: entries.some(({ otherPerson }) => otherPerson),
    }),
    escalate: [...all.values()]
      .flatMap(({ escalate }, requirement) => escalate.map((step) => ({ ...step, requirement })))
      .sort((one, other) => one.afterMs - other.afterMs),
    askMs: least(entries.flatMap(({ askMs }) => askMs ?? [])),
    always: entries.every(({ always }) => always),
    times: least(entries.flatMap(({ times }) => times ?? [])),
  };
}
