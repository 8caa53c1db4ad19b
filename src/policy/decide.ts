import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Address, readAddress } from "./address.ts";
import { addressCaution, caution, hiddenText } from "./caution.ts";
import type { CompiledRules } from "./compiled-rules.ts";
import type { Facts } from "./condition.ts";
import type { ConnectorFiles } from "./connector-files.ts";
import { noMatch, noPattern, notRestricted, protectedBy, tooLarge, unreadableRules } from "./fixed-opinions.ts";
import type { FileGuard } from "./guard.ts";
import { createMatchCache, findNarrowerRule, matchRule } from "./match-rule.ts";
import { type MatchSteps, TooManySteps } from "./match-steps.ts";
import type { ExpandedAsk, LayerRules, Layers } from "./model.ts";
import { namedParts, refusedAddress } from "./named-address.ts";
import { describe, type Match, type Opinion, opinionBy, strictestOf } from "./opinion.ts";
import { risksOfAsk } from "./risk.ts";
import { type Target, targetOf } from "./rule-list.ts";
import { type Command, readCommandOf } from "./shell/command.ts";
import { judgeCommand } from "./shell/judge.ts";
import { firstMatchOfEach, plainRule, type TracedMatch, traceOf } from "./trace.ts";

/** Everything that decisions depend on, other than the ask and its layers. */
export interface PolicyState {
  compiled: CompiledRules;
  guard: FileGuard;
  connectorFiles: ConnectorFiles;
}

/** Decides on one pattern of an ask. `analyse` reads a command line into its commands; otherwise the text is judged as given. */
export function decidePattern(
  state: PolicyState,
  ask: ExpandedAsk,
  at: number,
  layers: Layers,
  { analyse, steps }: { analyse: boolean; steps: MatchSteps },
): PermissionDecision {
  const { permission, patterns } = ask;
  const pattern = patterns[at] ?? "";
  const address = permission === "webfetch" ? readAddress(pattern) : undefined;
  const commands =
    analyse && permission === "bash" ? readCommandOf(pattern, ask.line ?? pattern, ask.readings) : undefined;
  const protectedFile = state.guard(ask, at, commands);
  if (protectedFile) return toDecision(permission, pattern, protectedBy(protectedFile));
  try {
    return decideByRules(state, ask, at, layers, { commands, address, steps });
  } catch (cause) {
    if (cause instanceof TooManySteps) return toDecision(permission, pattern, tooLarge);
    throw cause;
  }
}

function decideByRules(
  state: PolicyState,
  ask: ExpandedAsk,
  at: number,
  layers: Layers,
  {
    commands,
    address,
    steps,
  }: { commands: readonly Command[] | undefined; address: Address | undefined; steps: MatchSteps },
): PermissionDecision {
  const { compiled } = state;
  const { permission, patterns, paths } = ask;
  const pattern = patterns[at] ?? "";
  const facts = factsOf(ask);
  const refused =
    address && !ask.isConfigured ? refusedAddress(compiled, address, ask.leadsTo, layers, facts) : undefined;
  if (refused) return toDecision(permission, pattern, protectedBy(refused));
  const line = ask.line ?? pattern;
  const matchRules = createMatchCache(compiled, steps);
  const matchesOf = (group: readonly LayerRules[], text: string) =>
    matchRules(group, targetOf(permission, text, paths?.[at], facts));
  const opinionOf = (group: readonly LayerRules[], unmatched?: Opinion): Opinion | undefined => {
    if (commands) {
      const matches = (text: string) => matchesOf(group, text);
      const rules = { matches, narrower: () => findNarrowerRule(compiled, layers, "bash"), unmatched };
      return strictestOf(commands.flatMap((command) => judgeCommand(command, line, rules) ?? []));
    }
    const last = matchesOf(group, pattern).at(-1);
    if (ask.restricts && last?.rule.action === PermissionAction.ALLOW) return undefined;
    return last ? opinionBy(last) : unmatched;
  };
  const unmet = layers.wide.flatMap((list) =>
    unmetIn(compiled, list, targetOf(permission, pattern, paths?.[at], facts)),
  );
  const unmatched = ask.restricts ? notRestricted : (withCondition(unmet) ?? noMatch);
  const opinion = strictestOpinion(layers, opinionOf, unmatched);
  const final = cautionFor(state, opinion, ask, at, layers, address) ?? opinion;

  const texts = commands?.flatMap(({ bare, spellings }) => [bare, ...spellings]) ?? [pattern];
  const matched = [...layers.wide, ...layers.narrow].flatMap((list) =>
    firstMatchOfEach(texts.map((text) => ({ text, matches: matchesOf([list], text) }))),
  );
  const all = unmet.length === 0 ? matched : [...matched, ...unmet].toSorted(byPlace(layers));
  return Object.assign(toDecision(permission, pattern, besideMatches(final, matched)), traceOf(all, final.match));
}

/** Finds the rules of a list that do not count because of their conditions. */
function unmetIn(compiled: CompiledRules, { layer, source = "", rules }: LayerRules, target: Target): TracedMatch[] {
  return compiled(rules)
    .unmet(target)
    .map((found) => ({ ...found, layer, source, text: "" }));
}

/** Orders matches by the layers of their rules, and by their places in these. */
function byPlace({ wide, narrow }: Layers) {
  const order = [...wide, ...narrow].map(({ layer, source = "" }) => `${layer} ${source}`);
  const placeOf = ({ layer, source }: TracedMatch) => order.indexOf(`${layer} ${source}`);
  return (one: TracedMatch, other: TracedMatch) => placeOf(one) - placeOf(other) || one.index - other.index;
}

/** The opinion where no rule matches, and one that allows would but for its condition. */
function withCondition(unmet: readonly TracedMatch[]): Opinion | undefined {
  const last = unmet.findLast(({ rule }) => rule.action === PermissionAction.ALLOW);
  if (last === undefined) return undefined;
  const reason = `${describe(last)} does not count, since ${last.unmet}: ask`;
  return { ...noMatch, reason, code: PermissionReason.CONDITION };
}

/** Returns what conditions may use of an ask. */
function factsOf(ask: ExpandedAsk): Facts {
  const { permission, contained, risks = [], call } = ask;
  const fact = { ...(contained !== undefined && { contained }), ...call };
  // Only the risks of command lines are looked for in all that they name.
  if (permission !== "bash") return fact;
  return { ...fact, risks: [...new Set([...risks, ...risksOfAsk(ask)].map(({ kind }) => kind))] };
}

/** Replaces "no rule matches" where one does: a rule about a part of a command, or of a list that can only narrow. */
function besideMatches(opinion: Opinion, matches: readonly TracedMatch[]): Opinion {
  const last = matches.at(-1);
  if (opinion !== noMatch || last === undefined) return opinion;
  const why = last.text === "" ? "can only narrow" : `matches only ${JSON.stringify(last.text)}`;
  return {
    ...noMatch,
    reason: `${describe(last)} ${why}, and no rule allows the rest: ask`,
    code: PermissionReason.NOT_NAMED,
  };
}

/** Decides on an ask without patterns, which no rule may allow. */
export function decideWithoutPattern(
  state: PolicyState,
  ask: ExpandedAsk,
  layers: Layers,
  steps: MatchSteps,
): PermissionDecision {
  const decision = decidePattern(state, { ...ask, patterns: [""] }, 0, layers, { analyse: true, steps });
  return decision.action === PermissionAction.ALLOW ? toDecision(ask.permission, "", noPattern) : decision;
}

/** Decides on a line of several commands as a whole, where a rule for the line asks or denies: no grant for one command may answer that. */
export function decideLine(
  { compiled }: PolicyState,
  { line, ...ask }: ExpandedAsk,
  layers: Layers,
  steps: MatchSteps,
): PermissionDecision[] {
  if (line === undefined || ask.patterns.length === 1) return [];
  try {
    return decideWholeLine(compiled, line, factsOf(ask), layers, steps);
  } catch (cause) {
    if (cause instanceof TooManySteps) return [toDecision("bash", line, tooLarge)];
    throw cause;
  }
}

function decideWholeLine(
  compiled: CompiledRules,
  line: string,
  facts: Facts,
  layers: Layers,
  steps: MatchSteps,
): PermissionDecision[] {
  const matches = [layers.wide, ...layers.narrow.map((list) => [list])].map((group) =>
    matchRule(compiled, group, targetOf("bash", line, undefined, facts), steps),
  );
  const stricter = matches
    .filter((match) => match !== undefined)
    .filter(({ rule }) => rule.action !== PermissionAction.ALLOW && rule.pattern !== "*");
  const strictest = strictestOf(stricter.map(opinionBy));
  return strictest ? [toDecision("bash", line, strictest)] : [];
}

/** Returns the strictest opinion of the wide layers, of each narrow one, and of policy files that cannot be read. */
function strictestOpinion(
  layers: Layers,
  opinionOf: (group: readonly LayerRules[], unmatched?: Opinion) => Opinion | undefined,
  unmatched: Opinion,
): Opinion {
  const unreadable = layers.narrow.flatMap(({ problem }) => (problem === undefined ? [] : [unreadableRules(problem)]));
  const narrow = layers.narrow.flatMap((list) => {
    const opinion = opinionOf([list]);
    const counts = list.layer !== PermissionLayer.INHERITED || opinion?.action === PermissionAction.DENY;
    return opinion && counts ? [opinion] : [];
  });
  return strictestOf([...unreadable, opinionOf(layers.wide, unmatched) ?? unmatched, ...narrow]) ?? unmatched;
}

/** Returns the caution that forces an ask even where rules or grants allow; undefined if there is none. */
function cautionFor(
  { compiled, connectorFiles }: PolicyState,
  { action }: Opinion,
  ask: ExpandedAsk,
  at: number,
  layers: Layers,
  address: Address | undefined,
): Opinion | undefined {
  if (action === PermissionAction.DENY) return undefined;
  const hidden = hiddenText(ask.patterns[at] ?? "");
  if (hidden) return hidden;
  if (!address || ask.alwaysAsk !== undefined) return caution(ask, at, connectorFiles, layers.gitFiles);
  if (action === PermissionAction.ASK) return undefined;
  return addressCaution(address, namedParts(compiled, address, undefined, layers, factsOf(ask)).port);
}

function toDecision(
  permission: string,
  pattern: string,
  { action, layer, reason, match, code = PermissionReason.RULE }: Opinion,
): PermissionDecision {
  return create(PermissionDecisionSchema, {
    permission,
    pattern,
    action,
    layer,
    reason,
    reasonCode: code,
    ...(match && ruleOf(match)),
  });
}

function ruleOf({ index, rule }: Match) {
  return { ruleIndex: index, rule: plainRule(rule) };
}
