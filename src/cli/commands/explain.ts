import type { Command } from "commander";
import {
  PermissionAction,
  PermissionActionSchema,
  type PermissionDecision,
  PermissionLayerSchema,
  PermissionReasonSchema,
  type RuleMatch,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { ExplainPermissionResponseSchema } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { ToolErrorReasonSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { type PlanToolResponse, PlanToolResponseSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { collect, withServer } from "../command.ts";
import { UsageError } from "../failure.ts";
import { readJsonObject } from "../json-argument.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { previewLines } from "../view/ask-view.ts";
import { wordOf } from "../view/words.ts";

/** Adds `toolgate explain`: the rules alone. */
export function addExplain(program: Command): void {
  program
    .command("explain")
    .summary("say which rule decides for patterns")
    .description(
      "Say which rule decides; patterns are taken as they are, `toolgate plan` also looks at the command or path",
    )
    .argument("<permission>", "the kind, such as bash, edit or read")
    .argument("<pattern...>", "what would be asked for: commands, paths, addresses")
    .option("--agent <name>", "whose rules count (default: the session's agent, else build)")
    .option("--session <id>", "the session whose rules and grants count")
    .option("--rule <rule>", '"PERMISSION PATTERN ACTION", tried as the last rule; may be repeated', collect, [])
    .addHelpText("after", explainExamples)
    .action((permission: string, patterns: string[], options: QuestionOptions, command: Command) =>
      withServer(command, "approver", async ({ permissions }, screen) => {
        const { agent = "", session: sessionId = "", rule } = options;
        const answer = await permissions.explainPermission({
          permission,
          patterns,
          agent,
          sessionId,
          rules: rule.map(parseRule),
        });
        screen.show(ExplainPermissionResponseSchema, answer, (paint) =>
          answer.decisions.flatMap((one) => decisionLines(one, paint)),
        );
        return undefined;
      }),
    );
}

/** Adds `toolgate plan`: a whole call, without running it. */
export function addPlan(program: Command): void {
  program
    .command("plan")
    .summary("say what a call would do and ask, without running it")
    .description("Say what a call would do and what it would ask; nothing is run or recorded")
    .argument("<tool>", "the tool's name")
    .argument("<json>", "its input: a JSON object, @FILE, or - for stdin")
    .option("--agent <name>", "who would call (default: the session's agent, else build)")
    .option("--session <id>", "the session whose workspace, rules and grants count")
    .option("--rule <rule>", '"PERMISSION PATTERN ACTION", tried as the last rule; may be repeated', collect, [])
    .action((tool: string, json: string, options: QuestionOptions, command: Command) =>
      withServer(command, "caller", async ({ tools }, screen) => {
        const { agent = "", session: sessionId = "", rule } = options;
        const input = await readJsonObject(json, "the input");
        const answer = await tools.planTool({ tool, input, agent, sessionId, rules: rule.map(parseRule) });
        screen.show(PlanToolResponseSchema, answer, (paint) => planLines(answer, paint));
        return undefined;
      }),
    );
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

interface QuestionOptions {
  agent?: string;
  session?: string;
  rule: string[];
}

function planLines({ title, action, decisions, asks, preview, problem }: PlanToolResponse, paint: Paint): string[] {
  const offers = asks.flatMap(({ permission, offers }) =>
    offers.map(({ text }) => `  ${paint("dim", "always")}   ${terminalLine(permission)}: ${terminalLine(text)}`),
  );
  return [
    `${paintAction(action, paint)}  ${paint("bold", terminalLine(title))}`,
    ...previewLines(preview, paint),
    ...offers,
    ...(decisions.length > 0 ? [""] : []),
    ...decisions.flatMap((decision) => decisionLines(decision, paint)),
    ...(problem
      ? ["", `${paint("red", `✗ ${wordOf(ToolErrorReasonSchema, problem.reason)}`)}  ${terminalSafe(problem.message)}`]
      : []),
  ];
}

function decisionLines(decision: PermissionDecision, paint: Paint): string[] {
  const { action, permission, pattern, reason, reasonCode, matches, moreMatches } = decision;
  const code = wordOf(PermissionReasonSchema, reasonCode);
  return [
    `${paintAction(action, paint)}  ${terminalLine(permission)}  ${terminalSafe(pattern)}`,
    `       ${paint("dim", `${terminalLine(reason)} [${code}]`)}`,
    ...(moreMatches > 0 ? [`         ${paint("dim", `… ${moreMatches} earlier rules match, too`)}`] : []),
    ...matches.map((match) => matchLine(match, paint)),
  ];
}

/** One rule that matched, such as `→ config 3  bash "git push *" deny`; the arrow marks the deciding one. */
function matchLine({ layer, source, ruleIndex, rule, text, decided }: RuleMatch, paint: Paint): string {
  const place = [
    wordOf(PermissionLayerSchema, layer),
    ruleIndex,
    ...(source === "" ? [] : [`(${terminalLine(source)})`]),
  ];
  const action = wordOf(PermissionActionSchema, rule?.action ?? PermissionAction.UNSPECIFIED);
  const words = `${place.join(" ")}  ${terminalLine(rule?.permission ?? "")} ${JSON.stringify(rule?.pattern)} ${action}`;
  const met = text === "" ? "" : `  meets ${terminalSafe(JSON.stringify(text))}`;
  return paint(decided ? "reset" : "dim", `       ${decided ? "→" : " "} ${terminalSafe(words)}${met}`);
}

function paintAction(action: PermissionAction, paint: Paint): string {
  const colour = action === PermissionAction.ALLOW ? "green" : action === PermissionAction.DENY ? "red" : "yellow";
  return paint(colour, wordOf(PermissionActionSchema, action).padEnd(5));
}

const actions = new Map<string, PermissionAction>([
  ["allow", PermissionAction.ALLOW],
  ["ask", PermissionAction.ASK],
  ["deny", PermissionAction.DENY],
]);

const explainExamples = `
Examples:
  toolgate explain bash "git push origin main" "rm -rf build"
  toolgate explain edit src/main.ts --agent plan
  toolgate explain bash "npm test" --rule "bash npm * allow"`;
