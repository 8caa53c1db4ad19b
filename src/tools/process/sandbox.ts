import { execFile } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

/** What commands may change: everything that the service may, the workspace and temporary files, or nothing that lasts. */
export type SandboxProfile = "off" | "workspace-write" | "read-only";

/** How commands are confined. */
export interface SandboxConfinement {
  readonly profile: SandboxProfile;
  /** Whether they reach the network. */
  readonly network: boolean;
}

/** Where a command runs. */
export interface SandboxPlace {
  agent: string;
  /** The canonical working directory. */
  cwd: string;
  /** The canonical directory of the workspace. */
  workspace: string;
  /** The canonical directories outside the workspace that the call was allowed to touch. */
  directories: readonly string[];
}

/** The wall around commands; policy and people are the gate before it. */
export interface Sandbox {
  /** How the commands of agents without a setting of their own are confined; `off` also where it cannot start. */
  readonly state: SandboxConfinement;
  /** Why it is off although it was wanted, and what to do. */
  readonly problem: string | undefined;
  /** How the commands of this agent are confined. */
  confinement(agent: string): SandboxConfinement;
  /** The program that runs this one confined. */
  confine(argv: Argv, place: SandboxPlace): Argv;
}

type Argv = readonly [string, ...string[]];

/** Tries once whether bubblewrap can start here. */
export async function openSandbox({
  wanted,
  agents,
  writable,
  hidden,
}: {
  wanted: SandboxConfinement;
  /** Those that differ. */
  agents: ReadonlyMap<string, SandboxConfinement>;
  /** Further directories that `workspace-write` leaves writable. */
  writable: readonly string[];
  /** What no command may see: the data directory with its tokens, the configuration, keys. */
  hidden: readonly Hidden[];
}): Promise<Sandbox> {
  const wall = [wanted, ...agents.values()].some(({ profile }) => profile !== "off");
  const problem = wall ? await startProblem() : undefined;
  // Only these two: results say them, and what else the configuration holds is not for callers.
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
const unconfined: SandboxConfinement = { profile: "off", network: true };

/** Why no sandbox can start here; undefined if one can. */
async function startProblem(): Promise<string | undefined> {
  try {
    const place = { agent: "", cwd: "/", workspace: tmpdir(), directories: [] };
    const confinement = { profile: "read-only", network: false } as const;
    await promisify(execFile)(
      program,
      [...namespaces(confinement), ...mounts(confinement, place, [], []), "--", "true"],
      { timeout: 5_000 },
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

/** Own process ids, so that a command sees no environment of others and kills nobody; and no power to undo the mounts. */
function namespaces({ network }: SandboxConfinement): string[] {
  const keepsOwners = process.getuid?.() === 0;
  return [
    ...["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"],
    ...(network ? [] : ["--unshare-net"]),
    ...["--cap-drop", "ALL"],
    // root goes on writing files of others where it may write at all.
    ...(keepsOwners ? ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"].flatMap((cap) => ["--cap-add", cap]) : []),
  ];
}

/** Later mounts lie over earlier ones: what is hidden comes last. */
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

/** What lies in a workspace and is configuration or code of the service. */
const serviceFiles = [".opencode", "toolgate.toml"];

/** The whole of the disk, which is too much, and what the sandbox has of its own. */
const kernelDirectories = /^\/$|^\/(dev|proc)(\/|$)/;
