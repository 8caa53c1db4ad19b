import { spawn } from "node:child_process";
import { once } from "node:events";
import { homedir, tmpdir } from "node:os";
import { text } from "node:stream/consumers";
import { isWithin } from "../core/paths.ts";
import type { Wall } from "../policy/model.ts";
import { type BaseSettings, baseLayer } from "./base-layer.ts";
import type { AgentConfinement, SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { type ControlGroups, commandLimits, limitsShare } from "./control-groups.ts";
import { type Disk, freeCaches, openDisk } from "./disk.ts";
import { fileLayer, hiddenPathsOf } from "./file-layer.ts";
import { createSpare, type GatePipes, gateShare, pipesShare, type Spare } from "./gate.ts";
import { createGitSystemFile } from "./git-settings.ts";
import {
  type Argv,
  type Confined,
  type Covered,
  composeLayers,
  type LayerShare,
  releaseShares,
  type UsageLimits,
  type WallLayer,
} from "./layers.ts";
import { createMountPoints } from "./mount-points.ts";
import { createSessionNetworks, probeNetwork } from "./network/session-networks.ts";
import { createMountPlanner } from "./plan-files.ts";
import { coverHostSockets, createRunningCommands, type RunningCommands } from "./running-commands.ts";
import { createSeccompFilters, filterArchitecture, findMaskFile, type SeccompFilters } from "./seccomp.ts";
import { type CacheLinks, createSessionDirectories, sharedTemporary } from "./session-directories.ts";
import { createUsageWatch } from "./usage-watch.ts";

/** Enforces confinement in the kernel, after policy has allowed a command. */
export interface Sandbox {
  /** Confinement of agents without a specific setting; `off` also if the sandbox cannot start. */
  readonly state: SandboxConfinement;
  /** Reason why it is off although it was configured, and the next step. */
  readonly problem: string | undefined;
  /** Returns the parts that hold for agents without a specific setting; a network that cannot be opened is known after the first try. */
  layers(): WallLayer[];
  /** Returns why the networks of sessions cannot be opened; undefined if they can, or if none was needed yet. */
  networkProblem(): string | undefined;
  /** Reasons why not all parts of the configured sandbox work; only known if all are required. */
  readonly incomplete: readonly string[];
  /** The reason why commands of some agent run without the filter of system calls; undefined if none does. */
  readonly unfiltered: string | undefined;
  /** Returns the confinement of an agent's commands. */
  confinement(agent: string): SandboxConfinement;
  /** Returns the reason why an agent's commands run without the sandbox that is configured for them; undefined if they do not. */
  missing(agent: string): string | undefined;
  /** Returns what it enforces for the command lines of an agent. */
  wall(agent: string): Wall;
  /** Returns the path of git's system file if the host lacks it, so that only variables harden git; undefined otherwise. */
  missingGitFile(): Promise<string | undefined>;
  /** The commands that run, for the tools that change files meanwhile. */
  readonly running: Pick<RunningCommands, "isMounted" | "wrote">;
  /** Returns the paths that a command would not see. Throws `TooManyMounts`. */
  hiddenFrom(place: SandboxPlace): Promise<readonly Covered[]>;
  /** Returns the command line that runs this one confined, or lets a sandbox that waits become it. Release it after the command has ended. */
  confine(argv: Argv, place: SandboxPlace, spare?: Spare): Promise<Confined>;
  /** Makes a sandbox that waits for a command in this place, started with this environment; undefined if commands run without one. */
  prepare(place: SandboxPlace, env: Readonly<Record<string, string>>): Promise<Spare | undefined>;
  /** Watches the processes of a command that was started, by the limits of its confinement; see `UsageWatch`. */
  watchUsage(first: number, limits: UsageLimits | undefined, onExceeded: (reason: string) => void): () => void;
  /** Removes temporary files of sessions that no longer exist. */
  sweep(exists: (session: string) => Promise<boolean>): Promise<void>;
  close(): void;
}

/** Adds a share to the confinement of each command. */
type LayerSource = (confinement: AgentConfinement, place: SandboxPlace) => LayerShare | Promise<LayerShare>;

/** Opens the sandbox; probes once whether bubblewrap can start here. */
export async function openSandbox({
  wanted,
  agents,
  maxMasks = 100,
  temporary,
  mountPoints: listOfMountPoints,
  pipes,
  groups,
  home = homedir(),
  searchPath = "",
  readable = [],
  requireAll = false,
  maxMemoryBytes,
  ...settings
}: Omit<BaseSettings, "readable"> & {
  /** Further paths that commands can read. */
  readable?: readonly string[];
  wanted: AgentConfinement;
  /** Confinement of agents that differ. */
  agents: ReadonlyMap<string, AgentConfinement>;
  /** Maximum number of files that are hidden one by one: bubblewrap reads all mounts again for each. */
  maxMasks?: number;
  /** Directory for the temporary files of session trees; absent: those of each command are empty at first. */
  temporary?: string;
  /** Directory for the list of what mounts leave on the host after a crash; absent: there is no list. */
  mountPoints?: string;
  /** True if no command may run without all parts of its sandbox. */
  requireAll?: boolean;
  /** Maximum memory of all processes of a command; absent: three quarters of that of this machine. */
  maxMemoryBytes?: number | undefined;
  /** Home directory of the commands; absent: that of this process. */
  home?: string;
  /** Search path of the commands, whose directories they see. */
  searchPath?: string;
  /** Pipes by which commands wait until their mounts were checked; absent: they are not checked. */
  pipes?: GatePipes;
  /** Control groups of commands; absent: the service watches what they use, and nothing else limits it. They need `pipes`. */
  groups?: ControlGroups | undefined;
}): Promise<Sandbox> {
  const base = { ...settings, readable };
  const wall = [wanted, ...agents.values()].some(({ profile }) => profile !== "off");
  const filters = createSeccompFilters();
  const networks = createSessionNetworks({ isRequired: requireAll });
  const gitFile = createGitSystemFile();
  const sessions = createSessionDirectories(temporary);
  let found: Disk | undefined;
  const disk = () => (found ??= openDisk({ home, searchPath }));
  const problem = wall ? await startProblem(filters, disk()) : undefined;
  // Only these two fields: results contain them, and callers must not see other configuration.
  const actual = ({ profile, network }: SandboxConfinement) =>
    problem === undefined ? { profile, network } : unconfined;
  const settingsOf = (agent: string) => agents.get(agent) ?? wanted;
  const settingsIn = ({ agent, readsOnly }: SandboxPlace) =>
    readsOnly ? { ...settingsOf(agent), ...onlyReading } : settingsOf(agent);
  const confinement = (agent: string) => actual(settingsOf(agent));
  const hidden = base.hidden.map(({ path }) => path);
  const mountPoints = createMountPoints(listOfMountPoints);
  mountPoints.recover();
  const running = createRunningCommands();
  const usage = createUsageWatch();
  const limits = { ...commandLimits, ...(maxMemoryBytes !== undefined && { maxMemoryBytes }) };
  const files = { planner: createMountPlanner(), maskFile: findMaskFile(), hidden, maxMasks, mountPoints, running };
  const baseSources: readonly LayerSource[] = [
    (chosen, place) =>
      diskShare(baseLayer(chosen, place, base, disk()), disk(), (links) =>
        sessions.share(chosen, place.session, links),
      ),
    async (chosen, place) => {
      const share = await fileLayer(chosen, place, files);
      try {
        return chosen.unixSockets ? coverHostSockets(share, place, mountPoints) : share;
      } catch (error) {
        await share.release?.();
        throw error;
      }
    },
    () => gitFile.share(),
    ({ unixSockets = false, ptrace = false }) => filters.share({ unixSockets, ptrace }),
    (_, place) => limitsShare(limits, disksOf(place, temporary)),
  ];
  const sources: readonly LayerSource[] = [
    ...baseSources,
    () => (groups && pipes ? groups.share(limits) : {}),
    ({ network }, place) => (network === "proxy" ? networks.share(place.network) : {}),
  ];
  // A sandbox that waits belongs to no group yet, and nothing is judged by its rules.
  const waitingSources: readonly LayerSource[] = [
    ...baseSources,
    ({ network }, place) => (network === "proxy" ? networks.open(place.network) : {}),
  ];
  const walled = [wanted, ...agents.values()].filter(({ profile }) => profile !== "off");
  const incomplete = requireAll && problem === undefined ? await missingParts(walled) : [];
  return {
    state: actual(wanted),
    problem,
    incomplete,
    networkProblem: networks.problem,
    unfiltered: unfilteredReason(problem, [wanted, ...agents.values()]),
    layers: () => (confinement("").profile === "off" ? [] : layersOf(wanted, groups !== undefined)),
    confinement,
    running,
    missing: (agent) => (settingsOf(agent).profile === "off" ? undefined : problem),
    wall(agent) {
      const chosen = settingsOf(agent);
      const why = problemOfWall(chosen, problem);
      return {
        hides: confinement(agent).profile !== "off",
        ...(why !== undefined && { problem: why }),
        shown: () => [...disk().system.paths, ...disk().programs({})],
        temporary: [...sharedTemporary],
        writable: chosen.profile === "workspace-write" ? base.writable : [],
        hasNetwork: chosen.network === "proxy",
      };
    },
    missingGitFile: async () => (wall && problem === undefined ? await gitFile.missing() : undefined),
    async hiddenFrom(place) {
      const { profile } = confinement(place.agent);
      return profile === "off" ? [] : await hiddenPathsOf(settingsIn(place), place, files);
    },
    async confine(argv, place, spare) {
      if (confinement(place.agent).profile === "off") return unconfinedCommand(argv, place);
      const chosen = settingsIn(place);
      if (spare) {
        const shares = await collectShares(sources, chosen, { ...place, isMounted: true });
        const begin = await spare.take(chosen, shares, argv).catch(() => undefined);
        if (begin) return { ...composeLayers(program, shares, argv), begin };
        await releaseShares(shares);
      }
      const shares = await collectShares(sources, chosen, place);
      const gate = await openGate(shares, pipes);
      return composeLayers(program, [...gate, ...(place.hasPipes ? [pipesShare(gate)] : []), ...shares], argv);
    },
    async prepare(place, env) {
      if (pipes === undefined || confinement(place.agent).profile === "off") return undefined;
      const chosen = settingsIn(place);
      const shares = await collectShares(waitingSources, chosen, place);
      try {
        return await createSpare(program, pipes, chosen, shares, env);
      } catch (error) {
        await releaseShares(shares);
        throw error;
      }
    },
    watchUsage: (first, limits, onExceeded) => (limits ? usage.watch(first, limits, onExceeded) : () => undefined),
    sweep: sessions.sweep,
    close() {
      files.planner.close();
      filters.close();
      gitFile.close();
      networks.close();
      mountPoints.close();
    },
  };
}

/** Returns the parts that hold for a confinement on this machine. */
function layersOf({ network }: SandboxConfinement, hasGroups: boolean): WallLayer[] {
  return [
    ...(["disk", "processes", "files"] as const),
    ...(network === "open" ? [] : (["network"] as const)),
    ...(filterArchitecture() === undefined ? [] : (["system_calls"] as const)),
    "limits",
    ...(hasGroups ? (["cgroup"] as const) : []),
  ];
}

/** Returns the reason why no line of such commands is contained, as a predicate of the line; undefined if the wall is whole. */
function problemOfWall(
  { profile, network, unixSockets, ptrace }: AgentConfinement,
  problem: string | undefined,
): string | undefined {
  if (profile === "off") return 'runs without a sandbox, since profile = "off" is set for the agent';
  if (problem !== undefined) return `runs without a sandbox, since ${problem}`;
  if (network === "open") return 'reaches every host, since network = "open" is set for the agent';
  if (unixSockets) return "can open sockets of other programs, since unix_sockets is set for the agent";
  if (ptrace) return "can change other commands, since ptrace is set for the agent";
  if (filterArchitecture() === undefined)
    return `runs without a filter of system calls, since there is none for ${process.arch}`;
  return undefined;
}

/** Returns the reason why some commands run without the filter of system calls; undefined if all have it. */
function unfilteredReason(problem: string | undefined, settings: readonly SandboxConfinement[]): string | undefined {
  if (settings.some(({ profile }) => profile === "off"))
    return `profile = "off" under [sandbox] or [sandbox.agent.NAME] lets commands run without a sandbox: remove it`;
  if (problem !== undefined) return `commands run without a sandbox: ${problem}`;
  return filterArchitecture() === undefined ? `there is no filter of system calls for ${process.arch}` : undefined;
}

/** Returns the directories in which a command writes, for the space of their disks. */
const disksOf = ({ workspace, directories }: SandboxPlace, temporary: string | undefined) => [
  ...[workspace, ...(temporary === undefined ? [] : [temporary])],
  ...directories.flatMap(({ path, isWritable }) => (isWritable ? [path] : [])),
];

/** Returns the reasons why parts of the sandbox do not work, although bubblewrap starts. */
async function missingParts(walled: readonly SandboxConfinement[]): Promise<string[]> {
  const hasProxy = walled.some(({ network }) => network === "proxy");
  const network = hasProxy ? await probeNetwork() : undefined;
  return [
    ...(filterArchitecture() === undefined ? [`there is no filter of system calls for ${process.arch}`] : []),
    ...(network === undefined ? [] : [`the network of a session cannot be opened: ${network}`]),
  ];
}

/** Collects the shares in turn; frees those that exist if one fails. */
async function collectShares(
  sources: readonly LayerSource[],
  confinement: AgentConfinement,
  place: SandboxPlace,
): Promise<LayerShare[]> {
  const shares: LayerShare[] = [];
  try {
    for (const source of sources) shares.push(await source(confinement, place));
    return shares;
  } catch (error) {
    await releaseShares(shares);
    throw error;
  }
}

/** Mounts the disk; caches of the home directory below which nothing else is mounted become links to those of the session. */
function diskShare(
  base: LayerShare,
  disk: Disk,
  sessionShare: (links: CacheLinks | undefined) => LayerShare,
): LayerShare {
  const { home } = disk;
  const { args, visible = [] } = base;
  // Where the home directory is shown, it is so with its caches.
  const isShown = home === undefined || visible.some((path) => isWithin(home, path));
  const session = sessionShare(isShown ? undefined : { home, caches: freeCaches(home, visible) });
  return {
    ...base,
    args: { ...args, base: [...(args?.base ?? []), ...(session.args?.base ?? [])] },
    inMemory: [...(base.inMemory ?? []), ...(session.inMemory ?? [])],
  };
}

/** Opens the gate that holds the command until the checks of its shares have passed, if there are any; it is the first share. */
async function openGate(shares: readonly LayerShare[], pipes: GatePipes | undefined): Promise<LayerShare[]> {
  const checks = shares.flatMap(({ check }) => check ?? []);
  if (checks.length === 0 || pipes === undefined) return [];
  try {
    const checkAll = (pid: number) => Promise.all(checks.map((check) => check(pid)));
    return [await gateShare(pipes, async (pid) => (await checkAll(pid)).find((reason) => reason !== undefined))];
  } catch (error) {
    await releaseShares(shares);
    throw error;
  }
}

/** Returns a command line as it is. */
function unconfinedCommand(argv: Argv, { hasPipes = false }: SandboxPlace): Confined {
  const covered = { hidden: [], readOnly: [], absent: [] };
  const [none, release] = [async () => [], async () => {}];
  return {
    argv,
    env: {},
    descriptors: hasPipes ? ["pipe", "pipe"] : [],
    covered,
    visible: ["/"],
    layers: [],
    usage: undefined,
    exceeded: () => undefined,
    created: none,
    uncovered: none,
    release,
  };
}

const program = "bwrap";
/** Only a probe that hangs takes so long: a machine that is busy at the start must not lose its sandbox. */
const maxProbeMs = 30_000;
const unconfined: SandboxConfinement = { profile: "off", network: "open" };

const onlyReading: SandboxConfinement = { profile: "read-only", network: "none" };

const noSettings: BaseSettings = { writable: [], readable: [], hidden: [] };

/** Probes the sandbox; returns the reason why it cannot start, undefined if it can. */
async function startProblem(filters: SeccompFilters, disk: Disk): Promise<string | undefined> {
  const place = { agent: "", cwd: "/", workspace: tmpdir(), directories: [] };
  const base = baseLayer({ profile: "read-only", network: "none" }, place, noSettings, disk);
  const filter = filters.share({ unixSockets: false, ptrace: false });
  const probe = composeLayers(program, [base, filter, limitsShare(commandLimits, [])], ["true"]);
  try {
    const said = await failureOf(probe);
    if (said === undefined) return undefined;
    return `bubblewrap cannot start here (${said}): allow user namespaces, in a container for instance with --security-opt seccomp=unconfined, or set profile = "off" under [sandbox]`;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT")
      return "bubblewrap is not installed: apt-get install bubblewrap, then start the service again";
    // A probe that takes too long is aborted, with the reason as the cause.
    const said = error instanceof Error ? String(error.cause ?? error.message) : String(error);
    return `bubblewrap cannot be run (${said}): check its permissions, then start the service again`;
  } finally {
    await probe.release();
  }
}

/** Runs a confined program; returns what it printed to stderr or how it ended if it fails, undefined if it succeeds. */
async function failureOf({ argv: [file, ...args], descriptors }: Confined): Promise<string | undefined> {
  const child = spawn(file, args, {
    stdio: ["ignore", "ignore", "pipe", ...descriptors],
    // A timer of spawn would keep the process alive after a program that is missing.
    signal: AbortSignal.timeout(maxProbeMs),
  });
  const errors = child.stderr ? text(child.stderr) : "";
  const [code, signal]: (number | string | null)[] = await once(child, "close");
  return code === 0 ? undefined : (await errors).trim() || `exit code ${code ?? signal}`;
}
