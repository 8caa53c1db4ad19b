import { readFileSync } from "node:fs";
import { checkOutside } from "./paths.ts";
import { msOf } from "./people.ts";
import type { Settings } from "./schema.ts";
import { ConfigError } from "./toml.ts";

type ReachSettings = Pick<Settings, "channel" | "notify" | "public_url">;

/** A channel, with its secrets read. */
export interface ChannelSettings extends Omit<Settings["channel"][string], "secret_file" | "to"> {
  readonly name: string;
  /** Lines of the file of secrets. */
  readonly secrets: readonly string[];
  readonly to: string;
}

/** The file of the settings, with the lines of its keys. */
interface Source {
  readonly file: string;
  readonly lineOf: (path: readonly PropertyKey[]) => number | undefined;
  readonly workspaces: ReadonlyMap<string, string>;
}

/** Reads the channels, and which requests are sent to them. Throws on what would reach nobody. */
export function readReach({ channel, notify, public_url }: ReachSettings, { file, lineOf, workspaces }: Source) {
  const at = (path: readonly PropertyKey[], table: string) => `${file}:${lineOf(path) ?? "?"}: ${table}`;
  const channels = Object.entries(channel).map(
    ([name, { secret_file: secretFile, to = "", ...rest }]): ChannelSettings => {
      const place = at(["channel", name], `[channel.${name}]`);
      if (public_url === undefined)
        throw new ConfigError(
          `${place} has no link to send: set public_url to the address at which people reach the service`,
        );
      if (rest.kind === "webhook" && secretFile === undefined)
        throw new ConfigError(`${place} could be forged: set secret_file to a file with a key of Standard Webhooks`);
      if (rest.kind === "ntfy" && to === "") throw new ConfigError(`${place} reaches nobody: set to to the topic`);
      if (secretFile !== undefined) checkOutside(secretFile, `secret_file of [channel.${name}]`, workspaces);
      return { ...rest, name, to, secrets: secretFile === undefined ? [] : readLines(secretFile, place) };
    },
  );
  const rules = notify.map(({ after, ...rule }, index) => {
    const unknown = rule.channels.find((name) => !Object.hasOwn(channel, name));
    if (unknown !== undefined)
      throw new ConfigError(
        `${at(["notify", index], "[[notify]]")} reaches nobody by "${unknown}": there is no [channel.${unknown}]; add it, or correct the name`,
      );
    const silent = rule.channels.find((name) => rule.approve && !mayApprove(channel[name]));
    if (silent !== undefined)
      throw new ConfigError(
        `${at(["notify", index], "[[notify]]")} lets "${silent}" approve what it does not show: set content = "full" there (ntfy cannot show all), or leave approve out`,
      );
    return { ...rule, afterMs: after === "0s" ? 0 : msOf(after) };
  });
  return { channels, notify: rules };
}

const mayApprove = (channel: Settings["channel"][string] | undefined) =>
  channel?.content === "full" && channel.kind !== "ntfy";

function readLines(file: string, place: string): string[] {
  try {
    const lines = readFileSync(file, "utf8")
      .split("\n")
      .map((line) => line.trim());
    return lines.filter((line) => line !== "");
  } catch (cause) {
    throw new ConfigError(`${place}: ${file} cannot be read; create it, or correct the path`, { cause });
  }
}
