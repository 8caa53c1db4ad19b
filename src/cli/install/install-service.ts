import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, chownSync, existsSync, mkdirSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { shellCommand } from "../../view/words.ts";
import { refuseCachedProgram } from "../command.ts";
import { resolvedPath } from "../connect/file-change.ts";
import { exitCodes } from "../exit-codes.ts";
import { CommandError, UsageError } from "../failure/failure.ts";
import {
  aclCommands,
  configText,
  gitSettingsText,
  type InstalledWorkspace,
  installed,
  unitText,
} from "./service-files.ts";

/** Dependencies of `toolgate install`. */
export interface InstallOptions {
  /** The words that run this program, by absolute paths. */
  readonly program: readonly string[];
  readonly directories: readonly string[];
  /** A directory that stands for `/`; then no user is created and no command runs. */
  readonly root: string | undefined;
}

/** Result of an installation. */
export interface InstalledService {
  readonly written: readonly string[];
  /** Files that were there before, and stay as they are. */
  readonly kept: readonly string[];
  /** Commands that give the service access to the workspaces. */
  readonly access: readonly (readonly string[])[];
}

/** Creates the user, the data directory, the configuration and the unit. */
export function installService({ program, directories, root }: InstallOptions): InstalledService {
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
export function giveAccess(commands: readonly (readonly string[])[]): void {
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
