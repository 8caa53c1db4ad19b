import { PermissionAction, PermissionLayer, PermissionReason } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { describe, type Match, type Opinion, opinionBy, strictestOf } from "../opinion.ts";
import type { Command } from "./command.ts";

/**
 * What one list of rules says about a command. Its text decides; another spelling of it, met by a rule that is not for
 * everything, can only make that stricter. An opaque line is allowed only by `*`, and only if no layer has a `narrower`
 * ask or deny, which might be about something hidden in it.
 */
export function judgeCommand(
  { simple, text, spellings }: Command,
  lastMatch: (text: string) => Match | undefined,
  narrower: () => Match | undefined,
): Opinion | undefined {
  const decided = lastMatch(text);
  const stricter = spellings.flatMap((spelling) => {
    const match = lastMatch(spelling);
    if (!match || match.rule.action === PermissionAction.ALLOW || match.rule.pattern === "*") return [];
    return [{ ...opinionBy(match), reason: `${describe(match)} meets ${JSON.stringify(spelling)}` }];
  });
  const opinion = strictestOf([...(decided ? [opinionBy(decided)] : []), ...stricter]);
  if (simple || opinion?.action !== PermissionAction.ALLOW || !opinion.match) return opinion;
  if (opinion.match.rule.pattern !== "*") return askInstead(`${opinion.reason} does not decide it`);
  const hidden = narrower();
  return hidden ? askInstead(`${describe(hidden)} might be about a part of it`) : opinion;
}

function askInstead(why: string): Opinion {
  return {
    action: PermissionAction.ASK,
    layer: PermissionLayer.UNSPECIFIED,
    reason: `a command line with shell syntax: ${why}: ask`,
    code: PermissionReason.OPAQUE_COMMAND,
  };
}
