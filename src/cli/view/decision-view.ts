import {
  PermissionAction,
  PermissionActionSchema,
  type PermissionDecision,
  PermissionLayerSchema,
  PermissionReasonSchema,
  type RuleMatch,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { UsageError } from "../failure/command-error.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { wordOf } from "./words.ts";

/** A decision as lines: the action, why, and the rules that matched. */
export function decisionLines(decision: PermissionDecision, paint: Paint): string[] {
  const { action, permission, pattern, reason, reasonCode, matches, moreMatches } = decision;
  const code = wordOf(PermissionReasonSchema, reasonCode);
  return [
    `${paintAction(action, paint)}  ${terminalLine(permission)}  ${terminalSafe(pattern)}`,
    `       ${paint("dim", `${terminalLine(reason)} [${code}]`)}`,
    ...(moreMatches > 0 ? [`         ${paint("dim", `… ${moreMatches} earlier rules match, too`)}`] : []),
    ...matches.map((match) => matchLine(match, paint)),
  ];
}

/**
 * One rule that matched, such as `→ config /etc/toolgate/toolgate.toml:12  bash "git push *" deny`, or by its number in `toolgate
 * rules` if it is in no file. The arrow marks the deciding one.
 */
function matchLine(
  { layer, source, ruleIndex, rule, text, decided, unmet, place: written }: RuleMatch,
  paint: Paint,
): string {
  const place = [
    wordOf(PermissionLayerSchema, layer),
    written === "" ? ruleIndex : terminalLine(written),
    ...(source === "" || written.startsWith(source) ? [] : [`(${terminalLine(source)})`]),
  ];
  const action = wordOf(PermissionActionSchema, rule?.action ?? PermissionAction.UNSPECIFIED);
  const words = `${place.join(" ")}  ${terminalLine(rule?.permission ?? "")} ${JSON.stringify(rule?.pattern)} ${action}`;
  const met = [
    ...(text === "" ? [] : [`  meets ${terminalSafe(JSON.stringify(text))}`]),
    ...(unmet === "" ? [] : [`  does not count: ${terminalLine(unmet)}`]),
  ].join("");
  return paint(decided ? "reset" : "dim", `       ${decided ? "→" : " "} ${terminalSafe(words)}${met}`);
}

/** An action in its colour, padded to the length of the longest one. */
export function paintAction(action: PermissionAction, paint: Paint): string {
  const colour = action === PermissionAction.ALLOW ? "green" : action === PermissionAction.DENY ? "red" : "yellow";
  return paint(colour, wordOf(PermissionActionSchema, action).padEnd(5));
}

/** The options of commands that evaluate rules without a call. */
export interface RuleOptions {
  agent?: string;
  session?: string;
  rule: string[];
}

/** Reads a rule such as `bash git push * deny`: the first word is the permission, the last the action. */
export function parseRule(text: string): { permission: string; pattern: string; action: PermissionAction } {
  const [, permission, pattern, word] = /^(\S+)\s+(.+)\s+(\S+)$/s.exec(text.trim()) ?? [];
  const action = actions.get(word ?? "");
  if (permission !== undefined && pattern !== undefined && action !== undefined) return { permission, pattern, action };
  throw new UsageError(
    `"${text}" is not a rule`,
    'write it like --rule "bash git push * deny"; actions are allow, ask and deny',
  );
}

const actions = new Map<string, PermissionAction>([
  ["allow", PermissionAction.ALLOW],
  ["ask", PermissionAction.ASK],
  ["deny", PermissionAction.DENY],
]);
