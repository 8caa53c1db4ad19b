import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Address, namesIn, privateHost, readAddress } from "./address.ts";
import type { Facts } from "./condition.ts";
import type { FileGuard } from "./guard.ts";
import { type ExpandedAsk, type LayerRules, type Layers, type MatchSteps, TooManySteps } from "./model.ts";
import {
  addressCaution,
  caution,
  createMatchCache,
  describe,
  findNarrowerRule,
  firstMatchOfEach,
  hiddenText,
  type Match,
  matchRule,
  noMatch,
  noPattern,
  notRestricted,
  type Opinion,
  opinionBy,
  plainRule,
  protectedBy,
  strictestOf,
  type TracedMatch,
  tooLarge,
  traceOf,
  unreadableRules,
} from "./opinion.ts";
import type { ConnectorFiles } from "./protected-files.ts";
import { risksOfAsk } from "./risk.ts";
import { type CompiledRules, type Target, targetOf } from "./rule-list.ts";
import { type Command, readCommandOf, withoutSpace } from "./shell/command.ts";
import { isLiteral } from "./wildcard.ts";

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

  if (layers.isUntraced) return toDecision(permission, pattern, final);
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

/** Returns what conditions may use of an ask, found when one uses it. */
function factsOf(ask: ExpandedAsk): () => Facts {
  let found: Facts | undefined;
  return () => (found ??= findFacts(ask));
}

function findFacts(ask: ExpandedAsk): Facts {
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
  facts: () => Facts,
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

/** Returns which parts of an address a rule that does not deny spells out: the host (or the IP address it resolves to), and the port. */
function namedParts(
  compiled: CompiledRules,
  address: Address,
  leadsTo: string | undefined,
  { wide }: Layers,
  facts?: () => Facts,
): { host: boolean; port: boolean } {
  const target = targetOf("webfetch", address.url, undefined, facts);
  const rules = wide.flatMap(({ rules }) => compiled(rules).all(target));
  const naming = rules.filter(({ rule }) => rule.action !== PermissionAction.DENY);
  const isNamed = (host: string) => naming.some(({ rule }) => namesIn(rule.pattern, { ...address, host }).host);
  return {
    host: isNamed(address.host) || (leadsTo !== undefined && isNamed(leadsTo)),
    port: address.port === "" || naming.some(({ rule }) => namesIn(rule.pattern, address).port),
  };
}

/** Returns the reason why the engine denies an address: it is not public, and no rule names it. Undefined if it does not. */
function refusedAddress(
  compiled: CompiledRules,
  address: Address,
  leadsTo: string | undefined,
  layers: Layers,
  facts?: () => Facts,
): string | undefined {
  const reason = privateHost(address.host) ?? (leadsTo === undefined ? undefined : privateHost(leadsTo));
  if (reason === undefined || namedParts(compiled, address, leadsTo, layers, facts).host) return undefined;
  return `${reason}, and no rule names it`;
}

/** A list of rules, as the judgement of commands sees it. */
interface CommandRules {
  /** Returns the rules that match a text, in order: the last one decides. */
  matches(text: string): readonly Match[];
  /** Returns an ask or deny of any layer that is not for all commands. */
  narrower(): Match | undefined;
  /** The opinion if no rule matches. */
  unmatched: Opinion | undefined;
}

/**
 * Returns the opinion of one list of rules on a command of a line. The words of the command decide, and those of the
 * commands that it runs; a match of another spelling, by a rule that is not for everything, can only make the opinion
 * stricter. A rule allows what it spells out. Only `*` allows opaque or dangerous parts beyond that, and only if no layer
 * has a narrower ask or deny, which might be about them.
 */
function judgeCommand(command: Command, line: string, rules: CommandRules): Opinion | undefined {
  const stricter = [line, ...command.spellings].flatMap((spelling) => {
    const match = rules.matches(spelling).at(-1);
    if (!match || match.rule.action === PermissionAction.ALLOW || match.rule.pattern === "*") return [];
    return [{ ...opinionBy(match), reason: `${describe(match)} meets ${JSON.stringify(spelling)}` }];
  });
  const reachesBeyond = command.dangers.some(
    ({ length, mayBegin }) => length === Number.POSITIVE_INFINITY && !mayBegin,
  );
  const texts = [line, command.text, ...(reachesBeyond ? [] : [command.bare])];
  const decided = exactly(texts, rules) ?? byWords(command, rules);
  return strictestOf([...(decided ? [decided] : []), ...stricter]);
}

/** Returns the opinion of an allowing rule that equals one of these texts, word for word. */
function exactly(texts: readonly string[], rules: CommandRules): Opinion | undefined {
  const matches = texts.map((text) => rules.matches(withoutSpace(text)).at(-1));
  const match = matches.find((match) => match?.rule.action === PermissionAction.ALLOW && isLiteral(match.rule.pattern));
  return match && opinionBy(match);
}

function byWords(command: Command, rules: CommandRules): Opinion | undefined {
  const matches = rules.matches(command.bare);
  const match = matches.at(-1);
  if (!match) return rules.unmatched;
  if (match.rule.action !== PermissionAction.ALLOW) return opinionBy(match);
  const doubt = doubtAbout(command, match.rule.pattern, rules);
  const hidden = match.rule.pattern === "*" ? rules.narrower() : match;
  const inner = command.inner.flatMap((one) => byWords(one, rules) ?? []);
  if (doubt === undefined || !hidden) return strictestOf([opinionBy(match), ...inner]);
  // An earlier rule that reaches so far applies, unless a later one overrides it.
  const allowing = matches.slice(matches.findLastIndex(({ rule }) => rule.action !== PermissionAction.ALLOW) + 1);
  const reaching = allowing.findLast(
    ({ rule }) => rule.pattern !== "*" && doubtAbout(command, rule.pattern, rules) === undefined,
  );
  return reaching ? strictestOf([opinionBy(reaching), ...inner]) : doubted(command, doubt, hidden, rules);
}

/** Returns the reason why an allowing rule may not cover this command. */
function doubtAbout({ opaque, dangers }: Command, pattern: string, rules: CommandRules): string | undefined {
  if (opaque !== undefined) return opaque;
  const spelledOut = pattern.search(/ ?[*?]/);
  const isMeant = (text: string) => {
    const match = rules.matches(text).at(-1);
    return match !== undefined && match.rule.action !== PermissionAction.ALLOW && match.rule.pattern !== "*";
  };
  return dangers.find(({ length, mayBegin, texts }) => length > spelledOut && (!mayBegin || texts.some(isMeant)))?.why;
}

/** Returns the opinion where the rule for some commands does not settle it: a denial of the remaining rules, otherwise an ask. */
function doubted({ bare, opaque }: Command, doubt: string, rule: Match, rules: CommandRules): Opinion {
  const left = rules
    .matches(bare)
    .findLast(({ rule }) => rule.action !== PermissionAction.ALLOW || rule.pattern === "*");
  if (left?.rule.action === PermissionAction.DENY) return opinionBy(left);
  const allows = rule.rule.action === PermissionAction.ALLOW;
  const why = allows ? "does not reach so far" : "might be about a part of it";
  return {
    action: PermissionAction.ASK,
    layer: PermissionLayer.UNSPECIFIED,
    reason: `${describe(rule)} ${why}: ${doubt}: ask`,
    code: opaque === undefined ? PermissionReason.NOT_NAMED : PermissionReason.OPAQUE_COMMAND,
  };
}
