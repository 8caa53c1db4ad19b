import { RiskKind } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { commandRisks, isTextProgram, programName } from "../risky-programs.ts";
import type { Command } from "./command.ts";
import { interpreter } from "./interpreters.ts";

/**
 * Returns the addresses of the hosts that commands name literally where they use the network, each once. A host of the command's own
 * network is none. What a command computes is not found: the network refuses it.
 */
export function hostsNamed(commands: readonly Command[]): string[] {
  const found = commands.flatMap((command) => {
    const texts = command.mentions.flatMap((words) => textsOf(words, command));
    return texts.flatMap((text) =>
      [...text.matchAll(address)].flatMap(([, scheme = "", host = ""]) => root(scheme, host)),
    );
  });
  return [...new Set(found)].slice(0, maxHosts);
}

/** Above, the first ones are asked for; the network refuses the others. */
const maxHosts = 20;

/** Returns the texts of a command in which an address is one that it reaches. */
function textsOf(words: readonly string[], { text, pipeline }: Command): string[] {
  const [program = "", ...rest] = words;
  const name = programName(program);
  if (isTextProgram(name)) return [];
  if (interpreter(name) !== undefined) {
    const isFed = rest.every((word) => word.startsWith("-"));
    return [rest.join("\n"), ...(isFed ? [pipeline?.text ?? text] : [])];
  }
  if (!commandRisks(words).includes(RiskKind.NETWORK)) return [];
  const bare = fetchers.has(name) ? rest.filter((word) => bareHost.test(word)).map((word) => `http://${word}`) : [];
  const remotes = name === "git" || remoteCopies.has(name) ? rest.flatMap((word) => sshHost(name, word)) : [];
  return [rest.join("\n"), ...bare, ...remotes];
}

const address =
  /\b(https?|wss?|ssh):\/\/(?:[^\s/@'"`]*@)?([A-Za-z0-9_.-]+(?::\d{1,5})?|\[[0-9a-fA-F:.]+\](?::\d{1,5})?)(?![\w{$-])/g;
const bareHost = /^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:\d{1,5})?([/?].*)?$/;
const fetchers: ReadonlySet<string> = new Set("curl wget http https xh aria2c fetch lynx w3m links".split(" "));
const remoteCopies: ReadonlySet<string> = new Set("ssh scp sftp rsync".split(" "));

/** Finds the host of `user@host:path`, or for ssh the first operand. */
function sshHost(name: string, word: string): string[] {
  const [, host] =
    /^(?:[\w.-]+@)?([\w.-]+):(?!\/\/)/.exec(word) ??
    (name === "ssh" ? /^(?:[\w.-]+@)?([\w.-]+)$/.exec(word) : null) ??
    [];
  return host === undefined || word.startsWith("-") ? [] : [`ssh://${host}/`];
}

function root(scheme: string, host: string): string[] {
  const name = host.replace(/:\d+$/, "").toLowerCase();
  if (ownHosts.test(name)) return [];
  const plain = scheme.toLowerCase().replace(/^ws/, "http");
  return URL.canParse(`${plain}://${host}/`) ? [`${plain}://${host.toLowerCase()}/`] : [];
}

/** Names of the network that the commands of a session share, which the proxy does not see. */
const ownHosts = /^(localhost|127\.0\.0\.1|\[::1\])$/;
