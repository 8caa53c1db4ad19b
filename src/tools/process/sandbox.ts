import { execFile } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

/** Scope of the changes that commands can make: everything that the service can, the workspace and temporary files, or nothing that lasts. */
export type SandboxProfile = "off" | "workspace-write" | "read-only";

/** Confinement of commands. */
export interface SandboxConfinement {
  readonly profile: SandboxProfile;
  /** True if they reach the network. */
  readonly network: boolean;
}

/** Agent and directories of a command. */
export interface SandboxPlace {
  agent: string;
  /** The canonical working directory. */
  cwd: string;
  /** The canonical directory of the workspace. */
  workspace: string;
  /** Canonical directories outside the workspace that the call may touch. */
  directories: readonly string[];
}

/** Enforces confinement in the kernel, after policy has allowed a command. */
export interface Sandbox {
  /** Confinement of agents without a specific setting; `off` also if the sandbox cannot start. */
  readonly state: SandboxConfinement;
  /** Reason why it is off although it was configured, and the next step. */
  readonly problem: string | undefined;
  /** Returns the confinement of an agent's commands. */
  confinement(agent: string): SandboxConfinement;
  /** Returns the command line that runs this one confined. */
  confine(argv: Argv, place: SandboxPlace): Argv;
}

type Argv = readonly [string, ...string[]];

/** Opens the sandbox; probes once whether bubblewrap can start here. */
export async function openSandbox({
  wanted,
  agents,
  writable,
  hidden,
}: {
  wanted: SandboxConfinement;
  /** Confinement of agents that differ. */
  agents: ReadonlyMap<string, SandboxConfinement>;
  /** Further directories that `workspace-write` leaves writable. */
  writable: readonly string[];
  /** Paths that no command can see: the data directory with its tokens, the configuration, keys. */
  hidden: readonly Hidden[];
}): Promise<Sandbox> {
  const wall = [wanted, ...agents.values()].some(({ profile }) => profile !== "off");
  const problem = wall ? await startProblem() : undefined;
  // Only these two fields: results contain them, and callers must not see other configuration.
  const actual = ({ profile, network }: SandboxConfinement) =>
    problem === undefined ? { profile, network } : unconfined;
  const confinement = (agent: string) => actual(agents.get(agent) ?? wanted);
  return {
    state: actual(wanted),
    problem,
    confinement,
    confine(argv, place) {
      const chosen = confinement(place.agent);
      if (chosen.profile === "off") return argv;
      return [program, ...namespaces(chosen), ...mounts(chosen, place, writable, hidden), "--", ...argv];
    },
  };
}

/** A file or directory that is hidden; it must exist. */
export interface Hidden {
  path: string;
  kind: "file" | "directory";
}

const program = "bwrap";
/** Only a probe that hangs takes so long: a machine that is busy at the start must not lose its sandbox. */
const maxProbeMs = 30_000;
const unconfined: SandboxConfinement = { profile: "off", network: true };

/** Probes the sandbox; returns the reason why it cannot start, undefined if it can. */
async function startProblem(): Promise<string | undefined> {
  try {
    const place = { agent: "", cwd: "/", workspace: tmpdir(), directories: [] };
    const confinement = { profile: "read-only", network: false } as const;
    await promisify(execFile)(
      program,
      [...namespaces(confinement), ...mounts(confinement, place, [], []), "--", "true"],
      { timeout: maxProbeMs },
    );
    return undefined;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") {
      return "bubblewrap is not installed: apt-get install bubblewrap, then start the service again";
    }
    const said = error instanceof Error && "stderr" in error ? String(error.stderr).trim() : String(error);
    return `bubblewrap cannot start here (${said || String(error)}): allow user namespaces, in a container for instance with --security-opt seccomp=unconfined, or set profile = "off" under [sandbox]`;
  }
}

/** Unshares process IDs, so that a command cannot see or kill other processes, and drops the capability to undo mounts. */
function namespaces({ network }: SandboxConfinement): string[] {
  const keepsOwners = process.getuid?.() === 0;
  return [
    ...["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"],
    ...(network ? [] : ["--unshare-net"]),
    ...["--cap-drop", "ALL"],
    // root can still write files of other users where the mounts allow writing.
    ...(keepsOwners ? ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"].flatMap((cap) => ["--cap-add", cap]) : []),
  ];
}

/** Makes the mounts. Later ones cover earlier ones, so hidden paths come last. */
function mounts(
  { profile }: SandboxConfinement,
  { cwd, workspace, directories }: SandboxPlace,
  writable: readonly string[],
  hidden: readonly Hidden[],
): string[] {
  const own = directories.filter((directory) => !kernelDirectories.test(directory));
  const bind = profile === "read-only" ? "--ro-bind-try" : "--bind-try";
  const temporary = profile === "read-only" ? ["--tmpfs", tmpdir()] : ["--bind-try", tmpdir(), tmpdir()];
  const open = [...(profile === "read-only" ? [] : writable), workspace, ...own];
  return [
    ...["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", ...temporary],
    ...open.flatMap((directory) => [bind, directory, directory]),
    ...serviceFiles.map((name) => join(workspace, name)).flatMap((path) => ["--ro-bind-try", path, path]),
    ...hidden.flatMap(({ path, kind }) =>
      kind === "directory" ? ["--tmpfs", path] : ["--ro-bind", "/dev/null", path],
    ),
    ...["--chdir", cwd],
  ];
}

/** Names of configuration and code of the service in a workspace. */
const serviceFiles = [".opencode", "toolgate.toml"];

/** The root of the disk, and directories that the sandbox mounts itself. */
const kernelDirectories = /^\/$|^\/(dev|proc)(\/|$)/;
