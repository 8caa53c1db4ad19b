import { Code, ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import {
  DecisionKind,
  PermissionAction,
  PermissionLayer,
  PermissionOutcome,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext } from "../context.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { auditEntries, daysAgo } from "../view/audit-entries.ts";
import { type PastRequest, type Suggestion, suggestionsOf } from "../view/suggestions.ts";

/** Defines `toolgate suggest`. */
export function defineSuggest(command: Command, context: CliContext): void {
  command
    .description(
      "Print rules for what people approved at least five times on two days and never rejected, as TOML with their tests. Nothing is applied",
    )
    .option("--days <number>", "look at the answers of the last days", "30")
    .action(({ days }: { days: string }) =>
      withServer(context, command, "approver", async (server, screen) => {
        const past = await readRequests(server, daysAgo(days));
        const tried = await tryRules(server, past);
        if (screen.json) for (const each of tried) screen.write(`${JSON.stringify(each)}\n`);
        else screen.write(tomlOf(tried));
        const what = `${past.length} requests of the last ${days} days`;
        screen.note(
          tried.length === 0 ? `${what} suggest no rule` : `from ${what}; put what you want into the configuration`,
        );
        return undefined;
      }),
    );
}

/** Reads the requests that were opened or answered and are still stored, with the answers that people gave to these themselves. */
async function readRequests(server: ServerConnection, from: number): Promise<PastRequest[]> {
  const answers = new Map<string, Omit<PastRequest, "request">>();
  for await (const { record, time } of auditEntries(server, undefined)) {
    if (!record || time < from) continue;
    const { kind, permissionIds, settled } = record;
    if (kind === DecisionKind.ASKED) for (const id of permissionIds) answers.set(id, { time });
    if (kind !== DecisionKind.SETTLED || !settled || settled.by === "" || settled.settledWith !== "") continue;
    const isApproved = settled.outcome === PermissionOutcome.ONCE || settled.outcome === PermissionOutcome.ALWAYS;
    answers.set(settled.permissionId, { time, isApproved });
  }
  const found: PastRequest[] = [];
  for (const [permissionId, answer] of answers) {
    const { permission: request } = await server.permissions.getPermission({ permissionId }).catch((cause: unknown) => {
      if (cause instanceof ConnectError && cause.code === Code.NotFound) return { permission: undefined };
      throw cause;
    });
    if (request) found.push({ request, ...answer });
  }
  return found;
}

/** Tries the suggested rules on what was asked before, as the service decides, and returns those that hold. */
export async function tryRules(
  server: Pick<ServerConnection, "permissions">,
  past: readonly PastRequest[],
): Promise<TriedRule[]> {
  const tried: TriedRule[] = [];
  for (const suggestion of suggestionsOf(past).slice(0, maxSuggestions)) {
    const found = await tryRule(server, suggestion, past);
    if (found) tried.push(found);
  }
  return tried;
}

const maxSuggestions = 20;

/** A suggestion with what the service would decide by it. */
interface TriedRule extends Suggestion {
  /** The requests that would not have been asked. */
  saves: number;
  /** Other patterns that were asked for and would be allowed. */
  alsoAllows: string[];
}

/** Tries a rule on what was asked before; undefined if it would allow what people rejected, or pass a rule that is stricter. */
async function tryRule(
  { permissions }: Pick<ServerConnection, "permissions">,
  suggestion: Suggestion,
  past: readonly PastRequest[],
): Promise<TriedRule | undefined> {
  const { agent, permission, pattern, example } = suggestion;
  const { lists } = await permissions.listRules({ agent });
  const configured = lists.filter(
    ({ layer }) => layer !== PermissionLayer.DEFAULTS && layer !== PermissionLayer.PRESET,
  );
  const isStricter = configured.some(({ rules }) =>
    rules.some(
      (rule) =>
        rule.action !== PermissionAction.ALLOW &&
        rule.pattern !== "*" &&
        (rule.permission === permission || /[*?]/.test(rule.permission)) &&
        mayMeet(rule.pattern, pattern),
    ),
  );
  if (isStricter) return undefined;
  const rules = [{ permission, pattern, action: PermissionAction.ALLOW }];
  const isAllowed = async (text: string, by: typeof rules) => {
    const { action } = await permissions.explainPermission({ agent, permission, patterns: [text], rules: by });
    return action === PermissionAction.ALLOW;
  };
  if ((await isAllowed(example, [])) || !(await isAllowed(example, rules))) return undefined;
  const similar = past.filter(
    ({ request }) =>
      request.agent === agent &&
      request.permission === permission &&
      request.patterns.some((text) => firstWord(text) === firstWord(pattern)),
  );
  const allowed = new Map<string, boolean>();
  for (const text of new Set(similar.flatMap(({ request }) => request.patterns)))
    allowed.set(text, await isAllowed(text, rules));
  const saved = similar.filter(({ request }) => request.patterns.every((text) => allowed.get(text)));
  if (saved.some(({ isApproved }) => isApproved === false)) return undefined;
  const approved = new Set(similar.flatMap(({ request, isApproved }) => (isApproved ? request.patterns : [])));
  const alsoAllows = [...allowed].flatMap(([text, isAllowed]) => (isAllowed && !approved.has(text) ? text : []));
  return { ...suggestion, saves: saved.length, alsoAllows };
}

/** Checks by their first words if two patterns can match the same text. */
function mayMeet(one: string, other: string): boolean {
  const [first, second] = [firstWord(one), firstWord(other)];
  return first === second || /[*?]/.test(first);
}

const firstWord = (text: string) => text.split(" ", 1)[0] ?? "";

/** Writes rules with their tests as TOML. */
export function tomlOf(tried: readonly TriedRule[]): string {
  const tables = Map.groupBy(tried, ({ agent, permission }) => `[agent.${key(agent)}.permission.${key(permission)}]`);
  const rules = [...tables].map(([head, of]) =>
    [
      head,
      ...of.flatMap(({ pattern, approvals, days, saves, alsoAllows }) => [
        `# approved ${approvals} times on ${days} days, never rejected; saves ${saves} questions`,
        ...(alsoAllows.length === 0
          ? []
          : [`# allows as well: ${alsoAllows.slice(0, 10).map(terminalLine).join(" · ")}`]),
        `${JSON.stringify(pattern)} = "allow"`,
      ]),
    ].join("\n"),
  );
  const tests = tried.map(({ agent, permission, example }) =>
    [
      "[[permission_test]]",
      `agent = ${JSON.stringify(agent)}`,
      `permission = ${JSON.stringify(permission)}`,
      `pattern = ${JSON.stringify(example)}`,
      'expect = "allow"',
    ].join("\n"),
  );
  return [...rules, ...tests].map((block) => `${block}\n`).join("\n");
}

const key = (name: string) => (/^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name));
