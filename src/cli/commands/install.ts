import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, chownSync, existsSync, mkdirSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { Command } from "commander";
import { shellCommand } from "../../view/words.ts";
import { collect, refuseCachedProgram, withScreen } from "../command.ts";
import { resolvedPath } from "../connect/file-change.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { taskAgents } from "./init.ts";

interface InstallFlags {
  workspace: string[];
  root?: string;
  yes?: boolean;
}

/** Defines `toolgate install`. */
export function defineInstall(command: Command, context: CliContext): void {
  command
    .description(
      "Install the service as a systemd unit with its own user, so that agents of other users cannot change it",
    )
    .option("--workspace <dir>", "a directory that tools work in (repeatable; default: the current one)", collect, [])
    .option("--yes", "also run the commands that give the service access to the workspaces")
    .option("--root <dir>", "write the files into this directory instead of /, and run nothing")
    .addHelpText("after", installHelp)
    .action(({ workspace, root, yes = false }: InstallFlags) =>
      withScreen(context, command, async (screen) => {
        const directories = workspace.length === 0 ? [process.cwd()] : workspace;
        const { written, kept, access } = installService({ program: context.program, directories, root });
        const isGiven = yes && root === undefined;
        if (isGiven) giveAccess(access);
        const lines = [
          ...written.map((path) => `wrote ${path}`),
          ...kept.map((path) => `${path} exists, and stays as it is`),
          isGiven
            ? "access of the service to the workspaces, given:"
            : "access of the service to the workspaces, to run:",
          ...access.map((words) => `  ${shellCommand(words)}`),
          "next:",
          ...nextSteps().map((line) => `  ${line}`),
        ];
        screen.result({ written, kept, access, next: nextSteps() }, () => lines.map((line) => terminalSafe(line)));
      }),
    );
}

const installHelp = `
Examples:
  sudo toolgate install --workspace /home/ann/shop --yes
  toolgate install --root /tmp/image --workspace /srv/shop      for an image; nothing runs

Without ACLs agents that use their own tools still ask here; the service's own tools cannot write.`;

/** Dependencies of `toolgate install`. */
interface InstallOptions {
  /** The words that run this program, by absolute paths. */
  readonly program: readonly string[];
  readonly directories: readonly string[];
  /** A directory that stands for `/`; then no user is created and no command runs. */
  readonly root: string | undefined;
}

/** Result of an installation. */
interface InstalledService {
  readonly written: readonly string[];
  /** Files that were there before, and stay as they are. */
  readonly kept: readonly string[];
  /** Commands that give the service access to the workspaces. */
  readonly access: readonly (readonly string[])[];
}

/** Creates the user, the data directory, the configuration and the unit. */
function installService({ program, directories, root }: InstallOptions): InstalledService {
  const workspaces = directories.map(workspaceOf);
  refuseTwins(workspaces);
  checkProgram(program);
  const owner = root === undefined ? createUser() : undefined;
  const place = (path: string) => (root === undefined ? path : join(root, path));
  const data = place(installed.data);
  mkdirSync(dirname(data), { recursive: true, mode: 0o755 });
  mkdirSync(data, { recursive: true, mode: 0o700 });
  if (owner !== undefined) chownSync(data, owner.uid, owner.gid);
  const files = [
    { path: place(installed.config), text: configText(workspaces), mode: 0o640 },
    { path: place(installed.unit), text: unitText(program, workspaces), mode: 0o644 },
    { path: place(installed.socket), text: socketText, mode: 0o644 },
    { path: place(installed.gitSettings), text: gitSettingsText, mode: 0o644 },
  ];
  const [kept, written] = [files.filter(({ path }) => existsSync(path)), files.filter(({ path }) => !existsSync(path))];
  for (const { path, text, mode } of written) {
    mkdirSync(dirname(path), { recursive: true, mode: 0o755 });
    writeFileSync(path, text, { flag: "wx", flush: true });
    chmodSync(path, mode);
    if (owner !== undefined && mode === 0o640) chownSync(path, 0, owner.gid);
  }
  const pathOf = ({ path }: { path: string }) => path;
  return { written: written.map(pathOf), kept: kept.map(pathOf), access: workspaces.flatMap(accessTo) };
}

/** Runs the commands that give access; throws with the rest if one fails. */
function giveAccess(commands: readonly (readonly string[])[]): void {
  for (const [program = "", ...args] of commands) {
    const { error, status, stderr } = spawnSync(program, args, { encoding: "utf8" });
    if (status === 0) continue;
    const fact = error === undefined ? stderr.trim() : error.message;
    throw new CommandError(
      `the service has no access to a workspace: ${shellCommand([program, ...args])} failed (${fact}). Without it only agents that use their own tools work there`,
      "install setfacl (apt-get install acl) on a file system with ACLs, then run the command yourself",
      exitCodes.failed,
    );
  }
}

/** The first one is the workspace of requests that name none. */
function workspaceOf(named: string, index: number): InstalledWorkspace {
  const directory = resolvedPath(named);
  if (!statSync(directory, { throwIfNoEntry: false })?.isDirectory())
    throw new UsageError(`${directory} is not a directory`, "create it, or name another one with --workspace DIR");
  const name = basename(directory).replaceAll(/[^A-Za-z0-9_-]/g, "-") || "root";
  return { name: index === 0 ? "default" : name, directory };
}

function refuseTwins(workspaces: readonly InstalledWorkspace[]): void {
  const [twin] = workspaces.filter(({ name }, i) => workspaces.findIndex((other) => other.name === name) !== i);
  if (twin === undefined) return;
  throw new UsageError(
    `two workspaces would have the name ${twin.name}`,
    `install with one of them, then add the other to [workspace] in ${installed.config}`,
  );
}

/** Refuses a program that does not stay, or that the service's user cannot read. */
function checkProgram(program: readonly string[]): void {
  refuseCachedProgram(program, "install");
  for (const file of program) {
    const closed = parentsOf(file).find((directory) => !isOpen(directory)) ?? (canRead(file) ? undefined : file);
    if (closed === undefined) continue;
    throw new CommandError(
      `the user ${installed.user} could not run ${file}: ${closed} is closed to other users`,
      "install the program for all users (npm install --global), then run its `toolgate install`",
      exitCodes.failed,
    );
  }
}

const parentsOf = (path: string): string[] =>
  dirname(path) === path ? [] : [...parentsOf(dirname(path)), dirname(path)];
const isOpen = (directory: string) => (statSync(directory).mode & 0o001) !== 0;
const canRead = (file: string) => (statSync(file).mode & 0o004) !== 0;

function accessTo({ directory }: InstalledWorkspace): string[][] {
  const owner = String(statSync(directory).uid);
  return aclCommands(
    directory,
    owner,
    parentsOf(directory).filter((parent) => !isOpen(parent)),
  );
}

/** Creates the service's user if it does not exist. */
function createUser(): { uid: number; gid: number } {
  if (process.getuid?.() !== 0)
    throw new UsageError(
      "only root can install the service",
      "run it with sudo, or write into a directory with --root DIR",
    );
  const { user, data } = installed;
  const found = findUser() ?? addUser();
  if (found === undefined) throw new Error(`the user ${user} was not created`);
  return found;

  function addUser() {
    execFileSync("useradd", ["--system", "--user-group", "--home-dir", data, "--shell", "/usr/sbin/nologin", user]);
    return findUser();
  }
  function findUser() {
    const { status, stdout } = spawnSync("getent", ["passwd", user], { encoding: "utf8" });
    const [, , uid, gid] = stdout.split(":");
    return status === 0 ? { uid: Number(uid), gid: Number(gid) } : undefined;
  }
}

/** Paths of an installed service. */
const installed = {
  user: "toolgate",
  config: "/etc/toolgate/toolgate.toml",
  unit: "/etc/systemd/system/toolgate.service",
  socket: "/etc/systemd/system/toolgate.socket",
  listen: "127.0.0.1:7420",
  data: "/var/lib/toolgate",
  gitSettings: "/etc/gitconfig",
} as const;

/** Content of git's system file where there is none. */
const gitSettingsText =
  "# Written by `toolgate install`: in the sandbox of commands Toolgate adds settings to this file, which must exist for that.\n";

/** A workspace root of the service. */
interface InstalledWorkspace {
  readonly name: string;
  readonly directory: string;
}

/** Returns the configuration of the service. */
function configText(workspaces: readonly InstalledWorkspace[]): string {
  const roots = workspaces.map(({ name, directory }) => `${name} = ${JSON.stringify(directory)}`);
  return [
    "# Written by `toolgate install`; change it as you like, then: systemctl reload toolgate",
    "# toolgate.socket holds this port: change ListenStream there, too.",
    `listen = "${installed.listen}"`,
    `data = "${installed.data}"`,
    "# The user of an agent cannot answer the agent's requests.",
    "require_other_user = true",
    "",
    "[workspace]",
    ...roots,
    "",
    ...taskAgents,
    "",
  ].join("\n");
}

/**
 * The socket unit. systemd keeps the port while the service is down, so no program of another user takes it, whose pages would get the
 * sign-in of a browser.
 */
const socketText = `${[
  "[Unit]",
  "Description=The port of Toolgate, which stays taken while the service restarts",
  "",
  "[Socket]",
  `ListenStream=${installed.listen}`,
  "NoDelay=yes",
  "",
  "[Install]",
  "WantedBy=sockets.target",
].join("\n")}\n`;

/** Bounds Node's space for new objects: a busy service takes a quarter less memory and the same CPU, and pauses for less time. */
const youngSpace = "--max-semi-space-size=4";

/** Returns the systemd unit; `program` are the words that run this program, by absolute paths. */
function unitText(program: readonly string[], workspaces: readonly InstalledWorkspace[]): string {
  const [node = "", ...script] = program;
  const command = [node, youngSpace, ...script, "serve", "--config", installed.config].map(unitWord).join(" ");
  const writable = workspaces.map(({ directory }) => `ReadWritePaths=${unitWord(directory)}`);
  return `${[
    "[Unit]",
    "Description=Toolgate, which runs tools for AI agents",
    "After=network.target toolgate.socket",
    "Requires=toolgate.socket",
    "",
    "[Service]",
    "Type=exec",
    `User=${installed.user}`,
    `Group=${installed.user}`,
    `ExecStart=${command}`,
    "ExecReload=/bin/kill -HUP $MAINPID",
    "Restart=on-failure",
    "TimeoutStopSec=60",
    "Environment=PATH=/usr/local/bin:/usr/bin:/bin",
    "StateDirectory=toolgate",
    "StateDirectoryMode=0700",
    "UMask=0007",
    "# The service limits memory and processes of each command by a control group below the one of this unit.",
    "Delegate=memory pids",
    "",
    "# Commands of tools run in a sandbox of their own, which needs user namespaces and an unmasked /proc: settings that change",
    "# those (ProtectKernelTunables, ProtectKernelLogs, ProtectHostname, ProtectProc, RestrictNamespaces) are left out.",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    ...writable,
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectKernelModules=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "",
    "[Install]",
    "WantedBy=multi-user.target",
    "Also=toolgate.socket",
  ].join("\n")}\n`;
}

/** Quotes a word as units do; `%` and `$` have a meaning there. */
function unitWord(word: string): string {
  const plain = word.replaceAll("%", "%%").replaceAll("$", "$$$$");
  return /^[\w@%$+=:,./-]+$/.test(plain) ? plain : JSON.stringify(plain);
}

/** Returns the commands that give the service access to a workspace, and to the directories above it. */
function aclCommands(directory: string, owner: string, closedParents: readonly string[]): string[][] {
  const { user } = installed;
  return [
    ...closedParents.map((parent) => ["setfacl", "-m", `u:${user}:x`, parent]),
    ["setfacl", "-R", "-m", `u:${user}:rwX,d:u:${user}:rwX,d:u:${owner}:rwX`, directory],
  ];
}

/** Returns what to do after the installation: start the service, then sign a person in. */
function nextSteps(): string[] {
  const { user, data } = installed;
  return [
    "systemctl daemon-reload && systemctl enable --now toolgate.socket toolgate",
    shellCommand(["runuser", "-u", user, "--", "toolgate", "people", "invite", "--data", data]),
  ];
}
