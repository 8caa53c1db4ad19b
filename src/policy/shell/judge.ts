import { PermissionAction, PermissionLayer, PermissionReason } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { describe, type Match, type Opinion, opinionBy, strictestOf } from "../opinion.ts";
import { isLiteral } from "../wildcard.ts";
import { type Command, withoutSpace } from "./command.ts";

/** A list of rules, as the judgement of commands sees it. */
export interface CommandRules {
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
export function judgeCommand(command: Command, line: string, rules: CommandRules): Opinion | undefined {
  const stricter = [line, ...command.spellings].flatMap((spelling) => {
    const match = rules.matches(spelling).at(-1);
    if (!match || match.rule.action === PermissionAction.ALLOW || match.rule.pattern === "*") return [];
    return [{ ...opinionBy(match), reason: `${describe(match)} meets ${JSON.stringify(spelling)}` }];
  });
  const decided = exactly([line, command.text, command.bare], rules) ?? byWords(command, rules);
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
