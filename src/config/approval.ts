import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { passkeyPlace } from "../core/passkey-receipt.ts";
import { riskKindOf } from "../core/risk-words.ts";
import type { ApprovalRule, ConfiguredApprovals } from "../policy/approval-rules.ts";
import { ruleCovers } from "../policy/rule-cover.ts";
import { actions, expandHome } from "../policy/rules.ts";
import { type GroupSettings, msOf } from "./people.ts";
import { coversPattern } from "./reach.ts";
import type { Settings } from "./schema.ts";
import { ConfigError, type EntrySource, entryPlace } from "./toml.ts";

/** The entries of `[[approval]]`, and what may be wrong with them. */
export interface WrittenApprovals extends ConfiguredApprovals {
  readonly warnings: readonly { severity: "warning"; line: number | undefined; message: string }[];
}

const maxAskMs = 30 * 86_400_000;

const methods: Readonly<Record<NonNullable<Settings["approval"][number]["method"]>, AnswerMethod>> = {
  relay: AnswerMethod.RELAY,
  channel: AnswerMethod.CHANNEL,
  token: AnswerMethod.TOKEN,
  session: AnswerMethod.SESSION,
  fresh_session: AnswerMethod.FRESH_SESSION,
  passkey: AnswerMethod.PASSKEY,
};

/** Reads the entries of `[[approval]]`; refuses one that no request can fulfil or that none reaches, by its line. */
export function readApprovals(
  {
    approval,
    ask_ms,
    channel,
    insecure_no_auth,
    public_url,
  }: Pick<Settings, "approval" | "ask_ms" | "channel" | "insecure_no_auth" | "public_url">,
  groups: readonly GroupSettings[],
  home: string,
  source: EntrySource,
): WrittenApprovals {
  const warnings: WrittenApprovals["warnings"][number][] = [];
  const rules = approval.map((entry, index): ApprovalRule => {
    const lineAt = (...path: PropertyKey[]) => source.lineOf(["approval", index, ...path]);
    const refuse = (problem: string, ...path: PropertyKey[]) =>
      new ConfigError(`${entryPlace(source, ["approval", index, ...path], "[[approval]]")} ${problem}`);
    const { permission, agent, workspace, approve, reject, from, also, risk, ask, always, times } = entry;
    if (reject > approve)
      throw refuse(
        `would make it harder to reject (${reject} persons) than to approve (${approve}): lower reject`,
        "reject",
      );
    const all = [{ approve, from }, ...also];
    for (const [place, each] of all.entries()) {
      const path = place === 0 ? [] : ["also", place - 1];
      const unknown = each.from.find((name) => !groups.some((group) => group.name === name));
      if (unknown !== undefined)
        throw refuse(
          `can never be approved by ${JSON.stringify(unknown)}: there is no [group.${unknown}]; add it, or correct the name`,
          ...path,
          "from",
        );
      const named = groups.filter(({ name }) => each.from.includes(name));
      const members = new Set(named.flatMap((group) => group.members.map((member) => JSON.stringify(member))));
      if (each.from.length === 0 || members.size >= each.approve) continue;
      const has = `${each.from.join(", ")} ${each.from.length === 1 ? "has" : "have"} ${members.size} members`;
      const problem = `needs ${each.approve} persons, and ${has}`;
      if (named.every(({ claims }) => claims.length === 0))
        throw refuse(`can never be approved: it ${problem}; add members, or lower approve`, ...path, "approve");
      warnings.push({
        severity: "warning",
        line: lineAt(...path, "approve"),
        message: `[[approval]] ${problem} by name: check that the groups of identity providers have the others`,
      });
    }
    if (insecure_no_auth && all.some((each) => each.approve > 1 || each.from.length > 0))
      throw refuse("can never be approved: with insecure_no_auth everyone is the same person", "approve");
    if (insecure_no_auth && entry.method !== undefined)
      throw refuse("can never be approved: with insecure_no_auth no one proves who they are", "method");
    if (entry.method === "passkey" && passkeyPlace(public_url) === undefined)
      throw refuse(
        "can never be approved: passkeys belong to a domain; set public_url to an https address with a name",
        "method",
      );
    if (!always && times !== undefined)
      throw refuse("limits what always = false does not save: leave times out", "times");
    const askMs = ask === undefined ? undefined : msOf(ask);
    if (askMs !== undefined && askMs > maxAskMs) throw refuse(`stays open for ${ask}: at most 30 days`, "ask");
    const escalate = entry.escalate.map(({ after, ...rest }) => ({ ...rest, afterMs: msOf(after) }));
    for (const [place, { afterMs, to, channels }] of escalate.entries()) {
      const path = ["escalate", place];
      const { after } = entry.escalate[place] ?? {};
      const group = to.find((name) => !groups.some((known) => known.name === name));
      const unknown = channels.find((name) => !Object.hasOwn(channel, name));
      const missing = group === undefined ? `channel.${unknown}` : `group.${group}`;
      if (group ?? unknown)
        throw refuse(
          `escalates to nobody: there is no [${missing}]; add it, or correct the name`,
          ...path,
          group === undefined ? "channels" : "to",
        );
      const before = [...from, ...escalate.slice(0, place).flatMap((earlier) => earlier.to)];
      if (channels.length === 0 && (from.length === 0 || to.every((name) => before.includes(name))))
        throw refuse(
          "escalates to nobody new: add channels, or to groups that cannot approve yet (without from all can)",
          ...path,
          "to",
        );
      if (escalate.slice(0, place).some((earlier) => earlier.afterMs >= afterMs))
        throw refuse(
          `escalates after ${after} twice or out of order: put the steps in order, one each time`,
          ...path,
          "after",
        );
      if (afterMs >= (askMs ?? ask_ms))
        throw refuse(`never escalates: its requests have ended after ${after}; raise ask`, ...path, "after");
    }
    return {
      ...{ permission, agent, workspace, reject, all, always, times, escalate, askMs, action: actions.ask },
      pattern: expandHome(entry.pattern, home),
      risks: risk.map(riskKindOf),
      reasonRequired: entry.reason === "required",
      shownRequired: entry.shown,
      method: entry.method === undefined ? AnswerMethod.UNSPECIFIED : methods[entry.method],
      otherPerson: entry.other_person ?? approve > 1,
    };
  });
  for (const [index, rule] of rules.entries()) {
    const earlier = rules.slice(0, index).findIndex((other) => covers(other, rule, home));
    if (earlier >= 0)
      throw new ConfigError(
        `${entryPlace(source, ["approval", index], "[[approval]]")} decides nothing: the entry in line ${source.lineOf(["approval", earlier])} covers its requests; put this one first`,
      );
  }
  const named = new Set(
    rules.flatMap(({ all, escalate }) => [...all.flatMap(({ from }) => from), ...escalate.flatMap(({ to }) => to)]),
  );
  return { rules, groups: groups.filter(({ name }) => named.has(name)), warnings };
}

/** Checks if every request that an entry matches is matched by an earlier one. */
function covers(earlier: ApprovalRule, entry: ApprovalRule, home: string): boolean {
  const hasRisks = entry.risks.length > 0 && entry.risks.every((kind) => earlier.risks.includes(kind));
  return (
    ruleCovers(earlier, entry, home) &&
    coversPattern(earlier.agent, entry.agent) &&
    coversPattern(earlier.workspace, entry.workspace) &&
    (earlier.risks.length === 0 || hasRisks)
  );
}
