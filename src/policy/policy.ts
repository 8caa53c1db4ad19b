import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Address, namesIn, privateHost, readAddress } from "./address.ts";
import { canAsk } from "./can-ask.ts";
import { addressCaution, caution, hiddenText } from "./caution.ts";
import { createFileGuard, type Guard, keptPaths } from "./guard.ts";
import type { ExpandedAsk, LayerRules, Layers } from "./model.ts";
import { type Match, type Opinion, opinionBy, strictestOf } from "./opinion.ts";
import { protectedFile } from "./protected-files.ts";
import { type ReadPlace, readDoubts } from "./read-doubts.ts";
import { compileRules, type RuleList, type Target, targetOf } from "./rule-list.ts";
import type { Rule } from "./rules.ts";
import { readCommands } from "./shell/command.ts";
import { expand, type Files, type MayRead } from "./shell/expand.ts";
import { judgeCommand } from "./shell/judge.ts";
import { type Met, traceOf } from "./trace.ts";

export { strictest } from "./opinion.ts";

/** Decides what rules say, and why. */
export type Policy = ReturnType<typeof createPolicy>;

/** Makes the engine that judges asks. It knows no files and no sessions: the same ask and layers give the same answer. */
export function createPolicy({ guard, home }: { guard: Guard; home: string }) {
  const refusal = createFileGuard(guard, home);
  const lists = new WeakMap<readonly Rule[], RuleList>();

  function listOf(rules: readonly Rule[]): RuleList {
    const list = lists.get(rules) ?? compileRules(rules, home);
    lists.set(rules, list);
    return list;
  }

  /** The last match of lists that count as one. */
  function lastMatch(group: readonly LayerRules[], target: Target): Match | undefined {
    for (const { layer, rules, source = "" } of group.toReversed()) {
      const placed = listOf(rules).last(target);
      if (placed) return { layer, source, index: placed.index, rule: placed.rule };
    }
    return undefined;
  }

  /** Finds the rules of a list that meet a text, and remembers them: a command is many texts, and each is asked about often. */
  function createLookup() {
    const known = new Map<LayerRules, Map<string, readonly Match[]>>();
    return (list: LayerRules, target: Target): readonly Match[] => {
      const ofList = known.get(list) ?? new Map<string, readonly Match[]>();
      known.set(list, ofList);
      const { layer, rules, source = "" } = list;
      const matches =
        ofList.get(target.text) ??
        listOf(rules)
          .all(target)
          .map(({ index, rule }) => ({ layer, source, index, rule }));
      ofList.set(target.text, matches);
      return matches;
    };
  }

  /** A rule of any layer that asks or denies for a part of a permission only. */
  function narrower({ wide, narrow }: Layers, permission: string): Match | undefined {
    for (const { layer, rules, source = "" } of [...wide, ...narrow]) {
      const placed = listOf(rules)
        .about(permission)
        .find(({ rule }) => rule.action !== ALLOW && rule.pattern !== "*");
      if (placed) return { layer, source, index: placed.index, rule: placed.rule };
    }
    return undefined;
  }

  /** Whether some rule that does not deny names the host of an address (or where it leads), and its port. */
  function named(address: Address, leadsTo: string | undefined, { wide }: Layers) {
    const target = targetOf("webfetch", address.url);
    const rules = wide.flatMap(({ rules }) => listOf(rules).all(target));
    const naming = rules.filter(({ rule }) => rule.action !== DENY);
    const isNamed = (host: string) => naming.some(({ rule }) => namesIn(rule.pattern, { ...address, host }).host);
    return {
      host: isNamed(address.host) || (leadsTo !== undefined && isNamed(leadsTo)),
      port: address.port === "" || naming.some(({ rule }) => namesIn(rule.pattern, address).port),
    };
  }

  /** Why the engine refuses an address, if it does: only a rule that names it opens what is not public. */
  function refusedAddress(address: Address, { leadsTo }: ExpandedAsk, layers: Layers): string | undefined {
    const why = privateHost(address.host) ?? (leadsTo === undefined ? undefined : privateHost(leadsTo));
    if (why === undefined || named(address, leadsTo, layers).host) return undefined;
    return `${why}, and no rule names it`;
  }

  /** What is asked although rules allow it, or asked again although a grant would cover it. */
  function doubt(opinion: Opinion, ask: ExpandedAsk, at: number, layers: Layers, address: Address | undefined) {
    if (opinion.action === DENY) return undefined;
    const hidden = hiddenText(ask.patterns[at] ?? "");
    if (hidden) return hidden;
    if (!address) return caution(ask, at);
    if (opinion.action === ASK) return undefined;
    return addressCaution(address, named(address, undefined, layers).port);
  }

  /** Judges one pattern; `analyse` reads commands, else the text is judged as it is. */
  function decide(ask: ExpandedAsk, at: number, layers: Layers, analyse: boolean): PermissionDecision {
    const { permission, patterns, paths } = ask;
    const pattern = patterns[at] ?? "";
    const address = permission === "webfetch" ? readAddress(pattern) : undefined;
    const commands = analyse && permission === "bash" ? readCommands(pattern) : undefined;
    const refused = refusal(ask, at, commands) ?? (address && refusedAddress(address, ask, layers));
    if (refused) {
      return decision(permission, pattern, {
        action: DENY,
        layer: PermissionLayer.ENGINE,
        reason: `engine: ${refused}`,
        code: PermissionReason.PROTECTED,
      });
    }
    const line = ask.line ?? pattern;
    const texts = commands?.flatMap(({ bare, spellings }) => [bare, ...spellings]) ?? [pattern];
    const lookup = createLookup();
    const matchesOf = (group: readonly LayerRules[], text: string) => {
      const target = targetOf(permission, text, paths?.[at]);
      return group.flatMap((list) => lookup(list, target));
    };
    const opinionOf = (group: readonly LayerRules[], unmatched?: Opinion) => {
      if (commands) {
        const matches = (text: string) => matchesOf(group, text);
        const rules = { matches, narrower: () => narrower(layers, "bash"), unmatched };
        return strictestOf(commands.flatMap((command) => judgeCommand(command, line, rules) ?? []));
      }
      const last = matchesOf(group, pattern).at(-1);
      if (ask.restricts && last?.rule.action === ALLOW) return undefined;
      return last ? opinionBy(last) : unmatched;
    };
    const broken = layers.narrow.flatMap(({ problem }) => (problem === undefined ? [] : [unknownRules(problem)]));
    const narrow = layers.narrow.flatMap((list) => {
      const opinion = opinionOf([list]);
      const counts = list.layer !== PermissionLayer.INHERITED || opinion?.action === DENY;
      return opinion && counts ? [opinion] : [];
    });
    const unmatched = ask.restricts ? notRestricted : noMatch;
    const opinion = strictestOf([...broken, opinionOf(layers.wide, unmatched) ?? unmatched, ...narrow]) ?? unmatched;
    const doubted = doubt(opinion, ask, at, layers, address) ?? opinion;
    const met = [...layers.wide, ...layers.narrow].flatMap((list) =>
      firstOfEach(texts.map((text) => ({ text, matches: matchesOf([list], text) }))),
    );
    return Object.assign(decision(permission, pattern, doubted), traceOf(met, doubted.match));
  }

  /** A quick look at many files: which of them are worth a decision. */
  function mayRead({ wide, narrow }: Layers): MayRead {
    const restricts = ({ rules }: LayerRules) =>
      listOf(rules)
        .about("read")
        .some(({ rule }) => rule.action !== ALLOW);
    const groups = [wide, ...narrow.map((list) => [list])].filter((group) => group.some(restricts));
    if (groups.length === 0) return undefined;
    return ({ pattern, absolute }) => {
      if (protectedFile("read", absolute) !== undefined) return false;
      const target = targetOf("read", pattern, absolute);
      return groups.every((group) => (lastMatch(group, target)?.rule.action ?? ALLOW) === ALLOW);
    };
  }

  /** What only a rule for a whole line of several commands says: no grant for one of them may answer that. */
  function decideLine({ line, patterns }: ExpandedAsk, layers: Layers): PermissionDecision[] {
    if (line === undefined || patterns.length === 1) return [];
    const matches = [layers.wide, ...layers.narrow.map((list) => [list])].map((group) =>
      lastMatch(group, targetOf("bash", line)),
    );
    const stricter = matches
      .filter((match) => match !== undefined)
      .filter(({ rule }) => rule.action !== ALLOW && rule.pattern !== "*");
    const strictest = strictestOf(stricter.map(opinionBy));
    return strictest ? [decision("bash", line, strictest)] : [];
  }

  return {
    /** What an ask stands for; of a command line its commands and what they touch. */
    expand: (ask: ExpandedAsk, layers: Layers, files: Files) => expand(ask, files, mayRead(layers), home),
    /** Judges an ask: one decision for each pattern. An ask without patterns gets one, which is never ALLOW. */
    judge(ask: ExpandedAsk, layers: Layers): PermissionDecision[] {
      if (ask.patterns.length > 0) {
        const decisions = ask.patterns.map((_, at) => decide(ask, at, layers, true));
        return [...decisions, ...decideLine(ask, layers)];
      }
      const found = decide({ ...ask, patterns: [""] }, 0, layers, true);
      return [found.action === ALLOW ? decision(ask.permission, "", noPattern) : found];
    },
    /** Says which rule decides for each pattern as it is given: no command is analysed. */
    explain(ask: ExpandedAsk, layers: Layers): PermissionDecision[] {
      return ask.patterns.map((_, at) => decide(ask, at, layers, false));
    },
    /** What tells the files below a folder that may not simply be read; see `readDoubts`. */
    readDoubts: (place: ReadPlace, layers: Layers) =>
      readDoubts(place, layers, {
        about: ({ rules }) =>
          listOf(rules)
            .about("read")
            .map(({ rule }) => rule),
        kept: keptPaths(guard),
        home,
      }),
    /** Returns the permissions that can end in an ask, of those that are known or that rules name; `*` is any other one. */
    asking({ wide, narrow }: Layers, known: readonly string[]): string[] {
      const named = [...wide, ...narrow].flatMap(({ rules }) => rules.map(({ permission }) => permission));
      const about = (permission: string) => (list: LayerRules) =>
        listOf(list.rules)
          .about(permission)
          .map(({ rule }) => rule);
      const broken = narrow.some(({ problem }) => problem !== undefined);
      return [...new Set([...known, ...named, "*"])]
        .filter((name) => broken || canAsk(name, wide.flatMap(about(name)), narrow.map(about(name))))
        .sort();
    },
    /** Whether a permission is denied whatever is asked: its own rule patterns, taken as texts, and `*` are all denied. */
    hides(layers: Layers, permission: string): boolean {
      const rules = [...layers.wide, ...layers.narrow].flatMap(({ rules }) => listOf(rules).about(permission));
      const patterns = ["*", ...rules.map(({ rule }) => rule.pattern)];
      return patterns.every((_, at) => decide({ permission, patterns }, at, layers, false).action === DENY);
    },
  };
}

const { ALLOW, ASK, DENY } = PermissionAction;

const noMatch: Opinion = {
  action: ASK,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule matches: ask",
  code: PermissionReason.NO_RULE,
};
const noPattern: Opinion = {
  ...noMatch,
  reason: "nothing says what would be touched: ask",
  code: PermissionReason.NO_PATTERN,
};
const notRestricted: Opinion = {
  action: ALLOW,
  layer: PermissionLayer.UNSPECIFIED,
  reason: "no rule asks or denies it",
  code: PermissionReason.NO_RULE,
};

/** Each rule once, with the first of the texts that it meets; the first one of all need not be told. */
function firstOfEach(found: readonly { text: string; matches: readonly Match[] }[]): Met[] {
  const [first, ...others] = found;
  if (first && others.length === 0) return first.matches.map((match) => ({ ...match, text: "" }));
  const met = new Map<number, Met>();
  for (const [i, { text, matches }] of found.entries()) {
    for (const match of matches)
      if (!met.has(match.index)) met.set(match.index, { ...match, text: i === 0 ? "" : text });
  }
  return [...met.values()].sort((one, other) => one.index - other.index);
}

function unknownRules(problem: string): Opinion {
  return {
    action: ASK,
    layer: PermissionLayer.WORKSPACE,
    reason: `${problem}: everything asks`,
    code: PermissionReason.BROKEN_POLICY,
  };
}

function decision(
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
    ...(match && {
      ruleIndex: match.index,
      rule: { permission: match.rule.permission, pattern: match.rule.pattern, action: match.rule.action },
    }),
  });
}
