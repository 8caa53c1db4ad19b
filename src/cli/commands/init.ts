import { execFile } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { promisify } from "node:util";
import { type Command, Option } from "commander";
import { withScreen } from "../command.ts";
import type { CliContext, CliProcess } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";
import { askAtTerminal, isYes } from "../terminal/confirm.ts";
import { hasTerminal } from "../terminal/prompt.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** The presets of rules. */
export const presets = ["contained", "none"] as const;
type PresetName = (typeof presets)[number];

interface InitFlags {
  preset?: PresetName;
  registries?: string;
}

/** Defines `toolgate init`. */
export function defineInit(command: Command, context: CliContext): void {
  command
    .description("Write a commented configuration, with the preset of rules that you choose")
    .argument("[file]", "the file (default: the one that `toolgate serve` reads)")
    .addOption(
      new Option(
        "--preset <name>",
        "commands that the sandbox contains run without a question, or each command asks",
      ).choices([...presets]),
    )
    .option(
      "--registries <hosts>",
      "hosts from which contained commands may install packages by name, separated by commas; `found` for those that npm, pip, go and cargo use here",
    )
    .addHelpText("after", initHelp)
    .action((file: string | undefined, flags: InitFlags) =>
      withScreen(context, command, async (screen) => {
        const { io } = screen;
        const path = resolve(file ?? io.env.TOOLGATE_CONFIG ?? defaultConfigFile(io.env));
        if (existsSync(path))
          throw new UsageError(`${path} exists, and stays as it is`, "change it, or name another file");
        const { preset, hosts } = await writeConfiguration(io, path, flags);
        screen.result({ file: path, preset, registries: hosts }, () => [terminalLine(`wrote ${path}`)]);
        screen.note("next: toolgate check-config, then toolgate serve");
      }),
    );
}

/** Writes a new configuration; what the flags do not choose is asked at the terminal. */
export async function writeConfiguration(
  io: CliProcess,
  path: string,
  flags: { preset?: PresetName | undefined; registries?: string },
): Promise<{ preset: PresetName; hosts: readonly string[] }> {
  const preset = flags.preset ?? (await askForPreset(io));
  const found = preset === "none" || isListed(flags.registries) ? [] : await findRegistries(io.env);
  const hosts = await chooseHosts(io, flags, found);
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  writeFileSync(path, configurationText(preset, hosts, found), { flag: "wx", mode: 0o600 });
  return { preset, hosts };
}

const initHelp = `
Examples:
  toolgate init
  toolgate init --preset contained --registries found
  toolgate init ./toolgate.toml --preset none`;

/** Returns the configuration that `toolgate serve` reads. */
export const defaultConfigFile = (env: NodeJS.ProcessEnv) =>
  join(env.XDG_CONFIG_HOME || join(env.HOME || homedir(), ".config"), "toolgate/toolgate.toml");

const isListed = (registries: string | undefined) => registries !== undefined && registries !== "found";

/** Asks which preset to use. */
async function askForPreset(io: CliProcess): Promise<PresetName> {
  if (!hasTerminal(io))
    throw new UsageError("there is no terminal to answer at", "add --preset contained or --preset none");
  const question = [
    "Which commands run without a question?",
    "  1  contained: those whose effects the sandbox keeps in the workspace and in private files",
    "  2  none: each command asks, until your rules allow it",
    "[1/2] ",
  ].join("\n");
  const answer = await askAtTerminal(io, question);
  const chosen = presets.find((name, i) => answer === name || answer === String(i + 1));
  if (chosen === undefined) throw new UsageError(`there is no preset "${answer}"`, "answer 1 or 2");
  return chosen;
}

/** Returns the hosts to write: those of the flag, or those that were found if the person agrees. */
async function chooseHosts(
  io: CliProcess,
  { registries }: Pick<InitFlags, "registries">,
  found: readonly FoundRegistry[],
): Promise<string[]> {
  const hosts = [...new Set(found.map(({ host }) => host))];
  if (registries === "found") return hosts;
  if (registries !== undefined) return registries.split(",").flatMap((host) => host.trim() || []);
  if (hosts.length === 0 || !hasTerminal(io)) return [];
  const lines = found.map(({ host, program }) => `${host} (${program})`);
  const question = [
    "Package managers of this machine use these hosts:",
    ...lines,
    "Let contained commands install packages from them? [y/N] ",
  ];
  return isYes(await askAtTerminal(io, question.map(terminalLine).join("\n"))) ? hosts : [];
}

/** Writes the configuration. What is not chosen stands there as a comment. */
function configurationText(preset: PresetName, hosts: readonly string[], found: readonly FoundRegistry[]): string {
  const offered = hosts.length > 0 ? hosts : [...new Set(found.map(({ host }) => host))];
  const off = preset === "none" ? "# " : "";
  const listOff = off !== "" || hosts.length === 0 ? "# " : "";
  return `# Toolgate's configuration. Check it with: toolgate check-config

# Command lines whose effects the sandbox keeps in the workspace and in private files run without a question; all others ask.
${off}[preset]
${off}name = "contained"
# Hosts from which such commands may install packages by name. Without them each install asks.
${listOff}registries = ${JSON.stringify(offered)}

# Rules come after the preset; the last one that matches decides: "allow", "ask" or "deny".
[permission.bash]
# "npm test *" = "allow"
# "git push *" = "deny"

# Hosts that commands and the tool webfetch may reach without a question.
[permission.webfetch]
# "https://docs.example.com/*" = "allow"

# A decision that the rules must lead to; otherwise the service does not start.
# [[permission_test]]
# permission = "bash"
# pattern = "git push origin main"
# expect = "deny"

${taskAgents.join("\n")}
`;
}

/** Agents for `task` in addition to the built-in `explore`, and a program that runs them: lines to uncomment. */
export const taskAgents: readonly string[] = [
  "# Agents for the tool task, and a program that speaks ACP and runs them. Uncomment what you use, then restart the service.",
  "# [agent.librarian]",
  '# description = "Finds documentation and examples in other code."',
  '# permission = { "*" = "deny", read = "allow", grep = "allow", glob = "allow", webfetch = "ask", websearch = "ask", codesearch = "ask" }',
  "# [agent.oracle]",
  '# description = "Answers hard questions about the code, and changes nothing."',
  '# permission = { "*" = "deny", read = "allow", grep = "allow", glob = "allow" }',
  "# [agent.general]",
  '# description = "Does a task of several steps, by the rules of all agents."',
  "# [agent_runner.opencode]",
  '# command = "opencode"',
  '# args = ["acp"]',
  '# agents = ["explore", "librarian", "oracle", "general"]',
];

/** A host from which a package manager of this machine installs. */
interface FoundRegistry {
  host: string;
  program: string;
}

/** Asks the package managers of this machine which registries they use. One that is missing or fails is left out. */
async function findRegistries(env: NodeJS.ProcessEnv): Promise<FoundRegistry[]> {
  const run = async (program: string, ...args: string[]) => {
    const { stdout } = await promisify(execFile)(program, args, { env, timeout: maxMs });
    return stdout;
  };
  const home = env.HOME || homedir();
  const sources: [program: string, text: Promise<string>][] = [
    ["npm", run("npm", "config", "get", "registry")],
    ["pip", run("python3", "-c", pipDefaults)],
    ["pip", run("python3", "-m", "pip", "config", "list")],
    ["go", run("go", "env", "GOPROXY", "GOSUMDB")],
    ["cargo", readFile(join(env.CARGO_HOME || join(home, ".cargo"), "config.toml"), "utf8")],
  ];
  const texts = await Promise.allSettled(sources.map(([, text]) => text));
  const found = texts.flatMap((text, i) => {
    const program = sources[i]?.[0] ?? "";
    return text.status === "fulfilled" ? hostsIn(text.value, program).map((host) => ({ host, program })) : [];
  });
  return [...new Map(found.map((one) => [`${one.program} ${one.host}`, one])).values()];
}

const maxMs = 10_000;

/** Prints the index that pip uses where nothing else is set, and where its files lie. */
const pipDefaults =
  "from pip._internal.models.index import PyPI; print(PyPI.url, 'https://' + PyPI.file_storage_domain)";

/** Returns the hosts of the addresses in a text; of go also plain names, such as that of its checksum database. */
function hostsIn(text: string, program: string): string[] {
  const addresses = [...text.matchAll(/https:\/\/(?:[^\s/@'"]*@)?([A-Za-z0-9.-]+)/g)].map(([, host = ""]) => host);
  const names =
    program === "go" ? text.split(/[\s,|]+/).filter((word) => /^[a-z0-9-]+(\.[a-z0-9-]+)+$/.test(word)) : [];
  return [...addresses, ...names].map((host) => host.toLowerCase()).filter((host) => host.includes("."));
}
