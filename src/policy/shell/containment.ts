import { dirname } from "node:path";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { RiskKind } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { readAddress } from "../address.ts";
import type { ExpandedAsk, Wall } from "../model.ts";
import { commandRisks, isTextProgram, programName } from "../risky-programs.ts";
import type { Command } from "./command.ts";
import { interpreter } from "./interpreters.ts";
import type { Touched } from "./touched.ts";

/** What decides whether the sandbox contains a line. */
export interface Containment {
  wall: Wall;
  /** Evaluates rules without those of the preset, and of others with a condition. */
  judge(ask: ExpandedAsk): readonly PermissionDecision[];
  home: string;
}

/** A line with what it touches, and the asks for that. */
interface ContainedLine {
  commands: readonly Command[];
  /** The asks for the commands themselves. */
  lines: readonly ExpandedAsk[];
  touched: Touched;
  /** The asks for files and directories. */
  asks: readonly ExpandedAsk[];
  /** True if it starts outside the workspace. */
  startsOutside: boolean;
  /** Directories outside the workspace that do not exist, so that no approval could show them. */
  absent: ReadonlySet<string>;
}

/**
 * Finds whether the sandbox keeps all effects of a line in the workspace and in private temporary files; otherwise the reason, as
 * a predicate of the line. Of a contained line the asks are left out that the sandbox answers, for what is private there and for what
 * every command sees read-only, and the hosts are added that it names. An opaque line can be contained: the kernel holds it.
 */
export function contain(
  line: ContainedLine,
  by: Containment,
): { contained: true | string; asks: readonly ExpandedAsk[] } {
  const { touched, asks } = line;
  const isTemporary = (path: string) =>
    by.wall.temporary.some((directory) => isWithin(path, directory)) && !isWithin(path, by.home);
  const isPrivate = (path: string) => isTemporary(path) && !isGiven(path, by);
  const why = leavesBy(line, by, isPrivate);
  if (why !== undefined) return { contained: why, asks };
  const isAbsent = (path: string) => line.absent.has(path) || line.absent.has(dirname(path));
  const left = asks.flatMap((ask) => {
    if (ask.permission === "external_directory")
      return keep(ask, (path) => !isPrivate(path) && !isAbsent(path) && (!isShown(path, by.wall) || isGiven(path, by)));
    const isHeld = (path: string) => touched.outsideFiles.has(path) && (isPrivate(path) || isAbsent(path));
    return ask.permission === "edit" ? keep(ask, (path) => !isHeld(path)) : [ask];
  });
  const hosts = by.wall.hasNetwork
    ? hostsNamed(line.commands).map((url) => ({ permission: "webfetch", patterns: [url] }))
    : [];
  return { contained: true, asks: [...left, ...hosts] };
}

const isShown = (path: string, wall: Wall) => wall.shown().some((directory) => isWithin(path, directory));

/** Checks if rules give commands the directory of the host, instead of a private one. */
function isGiven(path: string, { judge }: Containment): boolean {
  const ask = { permission: "external_directory", patterns: [`${path}/*`], paths: [path] };
  return judge(ask).some(({ action }) => action === PermissionAction.ALLOW);
}

/** Reduces an ask to the paths that are to be asked for; none if nothing is left. */
function keep(ask: ExpandedAsk, isAsked: (path: string) => boolean): ExpandedAsk[] {
  const isLeft = ask.patterns.map((pattern, i) => isAsked(ask.paths?.[i] ?? pattern));
  if (!isLeft.includes(true)) return [];
  const left = (texts: readonly string[]) => texts.filter((_, i) => isLeft[i]);
  return [{ ...ask, patterns: left(ask.patterns), ...(ask.paths && { paths: left(ask.paths) }) }];
}

function leavesBy(
  { commands, lines, touched, asks, startsOutside, absent }: ContainedLine,
  by: Containment,
  isPrivate: (path: string) => boolean,
): string | undefined {
  const { wall, judge } = by;
  if (wall.problem !== undefined) return wall.problem;
  const cautioned = lines.find(({ alwaysAsk }) => alwaysAsk !== undefined);
  if (cautioned) return cautioned.alwaysAsk;
  if (startsOutside) return "starts in a directory outside the workspace";
  if (commands.some(isUnread)) return "is not understood, and so may do anything";
  const beyond = beyondTheWall(commands);
  if (beyond !== undefined) return beyond;
  for (const path of touched.outside) {
    if (kernel.test(path)) return `reaches ${path}, an interface of the kernel`;
    const ask = { permission: "external_directory", patterns: [path === "/" ? "/*" : `${path}/*`], paths: [path] };
    const restricted = restriction(judge(ask));
    if (restricted !== undefined) return `reaches ${path}: ${restricted}`;
    if (absent.has(path)) continue;
    if (!isPrivate(path) && !isShown(path, wall) && !isGiven(path, by))
      return `reaches ${path}, which is outside the workspace`;
  }
  for (const ask of asks.filter(({ permission }) => permission === "read")) {
    const asking = judge(ask).find(({ action }) => action !== PermissionAction.ALLOW);
    if (asking) return `reads ${asking.pattern}: ${asking.reason}`;
  }
  for (const ask of asks.filter(({ permission }) => permission === "edit"))
    for (const [i, pattern] of ask.patterns.entries()) {
      const path = ask.paths?.[i] ?? pattern;
      const restricted = restriction(judge({ ...ask, patterns: [pattern], paths: [path] }));
      if (restricted !== undefined) return `changes ${pattern}: ${restricted}`;
    }
  for (const path of [...touched.changed.keys(), ...touched.written.keys()]) {
    if (!touched.outsideFiles.has(path) || isPrivate(path)) continue;
    const isWritable = wall.writable.some((directory) => isWithin(path, directory));
    if (!isWritable && !absent.has(path) && !absent.has(dirname(path)))
      return `changes ${path}, which is outside the workspace`;
  }
  return undefined;
}

/** Checks if nothing is known of a command, not even the programs that it names. */
function isUnread({ opaque, text, mentions, inner }: Command): boolean {
  const isBare = opaque !== undefined && (mentions.length === 0 || mentions.length >= 256 || text.length > 8_192);
  return isBare || inner.some(isUnread);
}

const kernel = /^\/(proc|sys|dev)(\/|$)/;

/** Returns the reason of a decision that more than the lack of a rule, or a rule for everything, makes strict. */
function restriction(decisions: readonly PermissionDecision[]): string | undefined {
  return decisions.find(
    ({ action, layer, rule }) =>
      action !== PermissionAction.ALLOW &&
      (action === PermissionAction.DENY ||
        layer === PermissionLayer.ENGINE ||
        (rule !== undefined && rule.pattern !== "*")),
  )?.reason;
}

const isWithin = (path: string, directory: string) => path === directory || path.startsWith(`${directory}/`);

/** Programs, what they do beyond the sandbox, and the words with which they do it. */
type Row = readonly [programs: string, does: string, words?: RegExp];

/** The sandbox refuses what these do, or leaves it without effect, so that a line with one is not meant for it. */
const rows: readonly Row[] = [
  ["sudo doas su pkexec runuser chroot nsenter unshare setpriv", "acts as another user or in another place"],
  [
    "mount umount swapon swapoff losetup systemctl service systemd-run launchctl initctl rc-service update-rc.d loginctl hostnamectl timedatectl iptables ip6tables nft ufw sysctl modprobe insmod rmmod reboot shutdown halt poweroff useradd adduser usermod userdel groupadd visudo passwd chpasswd fdisk parted cryptsetup dpkg-reconfigure",
    "administers the machine",
  ],
  ["crontab at batch", "leaves something that runs later"],
  ["screen", "leaves something that runs later", /(^| )-\w*[dD]\w* /],
  [
    "tmux",
    "leaves something that runs later",
    /^(new|new-session|neww|new-window|respawn-pane|run-shell)\b.* ['"]?[^-\s]\S* \S/,
  ],
  ["kill killall5", "signals processes that are not its own", /(^| )(-1|1)( |$)/],
  [
    "ping ping6 traceroute mtr dig nslookup host whois nmap masscan tcpdump telnet ftp lftp nc ncat netcat socat mosh",
    "uses the network without the proxy",
  ],
  ["openssl", "uses the network without the proxy", /^s_(client|server)\b/],
  ["ssh", "forwards ports", /(^| )-\w*[RLDw]/],
  ["python", "serves files to other machines", /^-m (http\.server|SimpleHTTPServer)\b/],
  ["php", "serves files to other machines", /(^| )-S /],
  ["httpd serve http-server darkhttpd busybox", "serves files to other machines"],
];

const byProgram = new Map<string, Row[]>();
for (const row of rows)
  for (const name of row[0].split(" ")) byProgram.set(name, [...(byProgram.get(name) ?? []), row]);

/** Returns what commands do beyond the sandbox, as a predicate of their line; undefined if nothing is known. */
function beyondTheWall(commands: readonly Command[]): string | undefined {
  for (const words of commands.flatMap(({ mentions }) => mentions)) {
    const [program = "", ...rest] = words;
    const name = programName(program);
    if (/^["']?(\$|`)/.test(program)) return "runs a program whose name it computes";
    const line = rest.join(" ");
    const row = byProgram.get(name)?.find(([, , pattern]) => pattern === undefined || pattern.test(line));
    if (row) return `runs ${name}, which ${row[1]}`;
  }
  return undefined;
}

/**
 * Returns the addresses of the hosts that commands name literally where they use the network, each once. A host of the command's own
 * network is none. What a command computes is not found: the network refuses it.
 */
function hostsNamed(commands: readonly Command[]): string[] {
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
  const { url } = readAddress(`${plain}://${host.toLowerCase()}/`) ?? {};
  return url === undefined ? [] : [url];
}

/** Names of the network that the commands of a session share, which the proxy does not see. */
const ownHosts = /^(localhost|127\.0\.0\.1|\[::1\])$/;
