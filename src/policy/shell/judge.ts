import { PermissionAction, PermissionLayer, PermissionReason } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { describe, type Match, type Opinion, opinionBy, strictestOf } from "../opinion.ts";
import { isLiteral } from "../wildcard.ts";
import { type Command, withoutSpace } from "./command.ts";

/** A list of rules, as commands are judged by it. */
export interface CommandRules {
  /** Those that meet a text, in order: the last one decides. */
  matches(text: string): readonly Match[];
  /** An ask or deny of any layer that is not for all commands. */
  narrower(): Match | undefined;
  /** What holds where no rule matches. */
  unmatched: Opinion | undefined;
}

/**
 * What one list of rules says about a command of a line. Its words decide, and those of what it runs; another spelling,
 * met by a rule that is not for everything, can only make that stricter. A rule allows what it spells out; what is opaque
 * or dangerous beyond that only `*` allows, and only if no layer has a narrower ask or deny, which might be about it.
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

/** The allow of a rule that is one of these texts, word for word. */
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
  // An earlier rule that reaches so far holds, unless one behind it took that back.
  const allowing = matches.slice(matches.findLastIndex(({ rule }) => rule.action !== PermissionAction.ALLOW) + 1);
  const reaching = allowing.findLast(
    ({ rule }) => rule.pattern !== "*" && doubtAbout(command, rule.pattern, rules) === undefined,
  );
  return reaching ? strictestOf([opinionBy(reaching), ...inner]) : doubted(command, doubt, hidden, rules);
}

/** Why a rule's allow may not have meant this command. */
function doubtAbout({ opaque, dangers }: Command, pattern: string, rules: CommandRules): string | undefined {
  if (opaque !== undefined) return opaque;
  const spelledOut = pattern.search(/ ?[*?]/);
  const isMeant = (text: string) => {
    const match = rules.matches(text).at(-1);
    return match !== undefined && match.rule.action !== PermissionAction.ALLOW && match.rule.pattern !== "*";
  };
  return dangers.find(({ length, mayBegin, texts }) => length > spelledOut && (!mayBegin || texts.some(isMeant)))?.why;
}

/** The rule for some commands, allowing or stricter, does not settle it: what is left then denies, or it is asked. */
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
