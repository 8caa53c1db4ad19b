import { wildcard } from "../policy/wildcard.ts";
import { checkOutside, readOperatorFile } from "./paths.ts";
import { msOf, splitEntry } from "./people.ts";
import type { Settings } from "./schema.ts";
import { ConfigError, type EntrySource, entryPlace } from "./toml.ts";

type ReachSettings = Pick<Settings, "channel" | "notify" | "public_url" | "group" | "oidc">;

/** A channel, with its secrets read. */
export interface ChannelSettings
  extends Omit<Settings["channel"][string], "secret_file" | "to" | "team" | "url" | "push_hosts"> {
  readonly name: string;
  /** Lines of the file of secrets. */
  readonly secrets: readonly string[];
  readonly to: string;
  /** Address of the provider; empty for one that has none. */
  readonly url: string;
  readonly pushHosts: readonly string[];
  readonly slack?: SlackSettings;
}

/** Additional settings of Slack. The token names the app. */
interface SlackSettings {
  readonly app: string;
  readonly team: string;
  readonly appToken: string;
  readonly botToken: string;
}

/** Push services of the browsers' vendors. */
export const vendorPushHosts: readonly string[] = [
  "fcm.googleapis.com",
  "updates.push.services.mozilla.com",
  "*.push.apple.com",
  "*.notify.windows.com",
];

/** Reads the channels, and which requests are sent to them. Throws on what would reach nobody. */
export function readReach(settings: ReachSettings, source: EntrySource) {
  const { lineOf, workspaces } = source;
  const { channel, notify, public_url } = settings;
  const channels = Object.entries(channel).map(([name, settings]): ChannelSettings => {
    const { secret_file: secretFile, to = "", team = "", push_hosts: pushHosts, ...rest } = settings;
    const url = rest.url ?? (rest.kind === "slack" ? slackUrl : "");
    const place = entryPlace(source, ["channel", name], `[channel.${name}]`);
    if (public_url === undefined)
      throw new ConfigError(
        `${place} has no link to send: set public_url to the address at which people reach the service`,
      );
    if (rest.kind !== "push" && url === "")
      throw new ConfigError(`${place} reaches nobody: set url to the address that notices are sent to`);
    if (rest.kind === "webhook" && secretFile === undefined)
      throw new ConfigError(`${place} could be forged: set secret_file to a file with a key of Standard Webhooks`);
    if (rest.kind === "ntfy" && to === "") throw new ConfigError(`${place} reaches nobody: set to to the topic`);
    if (secretFile !== undefined) checkOutside(secretFile, `secret_file of [channel.${name}]`, workspaces);
    const secrets = secretFile === undefined ? [] : readLines(secretFile, place);
    const slack = rest.kind === "slack" ? { slack: readSlack({ to, team, secrets }, place) } : {};
    return { ...rest, ...slack, name, url, to, secrets, pushHosts: pushHosts ?? vendorPushHosts };
  });
  const rules = notify.map(({ after, to, ...rule }, index) => {
    const at = () => entryPlace(source, ["notify", index], "[[notify]]");
    const earlier = notify.slice(0, index).findIndex((other) => covers(other, rule));
    if (earlier >= 0)
      throw new ConfigError(
        `${at()} decides nothing: the entry in line ${lineOf(["notify", earlier])} covers its requests; put this one first`,
      );
    const unknown = rule.channels.find((name) => !Object.hasOwn(channel, name));
    if (unknown !== undefined)
      throw new ConfigError(
        `${at()} reaches nobody by "${unknown}": there is no [channel.${unknown}]; add it, or correct the name`,
      );
    const silent = rule.channels.find((name) => rule.approve && !mayApprove(channel[name]));
    if (silent !== undefined)
      throw new ConfigError(
        `${at()} lets "${silent}" approve what it does not show: set content = "full" there (ntfy and push cannot show all), or leave approve out`,
      );
    const place = entryPlace(source, ["notify", index, "to"], "[[notify]]");
    return { ...rule, to: readAudience(to, settings, place), afterMs: after === "0s" ? 0 : msOf(after) };
  });
  return { channels, notify: rules };
}

/** A receiver of the audit: a file, or an address with its token (empty: none). */
export type AuditExportSettings = { readonly name: string } & (
  | { readonly file: string }
  | { readonly url: string; readonly token: string }
);

/** Reads the receivers of the audit. Throws on one that gets nothing, or less than the operator thinks. */
export function readAuditExports(
  receivers: Settings["audit_export"],
  { audit_days: days = 400, audit_max_days: maxDays }: Pick<Settings, "audit_days" | "audit_max_days">,
  source: EntrySource,
): AuditExportSettings[] {
  if (maxDays !== undefined && maxDays < days)
    throw new ConfigError(
      `${entryPlace(source, ["audit_max_days"], "audit_max_days")} is below audit_days (${days}); raise it, or lower audit_days`,
    );
  return Object.entries(receivers).map(([name, { file, url, secret_file: secretFile }]) => {
    const place = entryPlace(source, ["audit_export", name], `[audit_export.${name}]`);
    if ((file === undefined) === (url === undefined))
      throw new ConfigError(`${place} has no receiver, or two: set either file or url`);
    if (file !== undefined) {
      if (secretFile !== undefined)
        throw new ConfigError(`${place} sends no token to a file; remove secret_file, or set url`);
      checkOutside(file, `file of [audit_export.${name}]`, source.workspaces);
      return { name, file };
    }
    if (secretFile !== undefined) checkOutside(secretFile, `secret_file of [audit_export.${name}]`, source.workspaces);
    const [token = "", ...others] = secretFile === undefined ? [] : readLines(secretFile, place);
    if (secretFile !== undefined && (others.length > 0 || !/^[\x21-\x7e]+$/.test(token)))
      throw new ConfigError(`${place}: ${secretFile} is not a token; write one line without spaces into it`);
    return { name, url: url ?? "", token };
  });
}

/** Reads the persons and groups of an entry. */
function readAudience(to: readonly string[], settings: Pick<ReachSettings, "group" | "oidc">, place: string) {
  const [people, groups] = [to.filter((entry) => entry.includes(":")), to.filter((entry) => !entry.includes(":"))];
  const unknown = groups.find((name) => !Object.hasOwn(settings.group, name));
  if (unknown !== undefined)
    throw new ConfigError(
      `${place} reaches nobody by ${JSON.stringify(unknown)}: there is no [group.${unknown}]; add it, or write a person as PROVIDER:SUBJECT`,
    );
  const named = people.map((entry) => splitEntry(entry, settings, place));
  return { groups, people: named.map(([issuer, subject]) => ({ issuer, subject })) };
}

type Matched = Pick<Settings["notify"][number], "permission" | "risk" | "agent" | "workspace">;

/** Checks if every request that an entry matches is matched by an earlier one. */
function covers(earlier: Matched, entry: Matched): boolean {
  const isWider = earlier.risk.length === 0 || entry.risk.length > 0;
  const fits = (["permission", "agent", "workspace"] as const).every((key) => coversPattern(earlier[key], entry[key]));
  return fits && isWider && entry.risk.every((risk) => earlier.risk.length === 0 || earlier.risk.includes(risk));
}

/** A pattern is covered if what its wildcards stand for is matched, both nothing and more than one character. */
export function coversPattern(earlier: string, entry: string): boolean {
  const texts = ["", "\u0001\u0002"].map((text) => entry.replaceAll("?", "\u0001").replaceAll("*", text));
  return texts.every((text) => wildcard(text, earlier));
}

const slackUrl = "https://slack.com/api/";

function readSlack(
  { to, team, secrets }: { to: string; team: string; secrets: readonly string[] },
  place: string,
): SlackSettings {
  const botToken = secrets.find((line) => line.startsWith("xoxb-"));
  const appToken = secrets.find((line) => line.startsWith("xapp-"));
  const app = /^xapp-\d+-(A[A-Z0-9]+)-/.exec(appToken ?? "")?.[1];
  if (botToken === undefined || appToken === undefined || app === undefined || secrets.length !== 2)
    throw new ConfigError(
      `${place} cannot sign in: set secret_file to a file with two lines, the token of the bot (xoxb-…) and that of the app (xapp-…)`,
    );
  if (!/^[CG][A-Z0-9]+$/.test(to) || !/^T[A-Z0-9]+$/.test(team))
    throw new ConfigError(`${place} needs the ids of its channel and team: to = "C…" and team = "T…"`);
  return { app, team, appToken, botToken };
}

const mayApprove = (channel: Settings["channel"][string] | undefined) =>
  channel?.content === "full" && channel.kind !== "ntfy" && channel.kind !== "push";

function readLines(file: string, place: string): string[] {
  const lines = readOperatorFile(file, `${place}:`).split("\n");
  return lines.map((line) => line.trim()).filter((line) => line !== "");
}
