import { spawn } from "node:child_process";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { text } from "node:stream/consumers";
import { type BaseSettings, baseLayer } from "./base-layer.ts";
import type { AgentConfinement, SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { fileLayer } from "./file-layer.ts";
import { type Argv, type Confined, composeLayers, type LayerShare, releaseShares } from "./layers.ts";
import { commandLimits, limitsShare } from "./limits.ts";
import { findMaskFile } from "./mask-file.ts";
import { createMountPlanner } from "./mount-planner.ts";
import { createSessionNetworks } from "./network/session-networks.ts";
import { createSeccompFilters, type SeccompFilters } from "./seccomp-layer.ts";
import { createSessionDirectories } from "./session-directories.ts";

/** Enforces confinement in the kernel, after policy has allowed a command. */
export interface Sandbox {
  /** Confinement of agents without a specific setting; `off` also if the sandbox cannot start. */
  readonly state: SandboxConfinement;
  /** Reason why it is off although it was configured, and the next step. */
  readonly problem: string | undefined;
  /** Returns the confinement of an agent's commands. */
  confinement(agent: string): SandboxConfinement;
  /** Returns the reason why an agent's commands run without the sandbox that is configured for them; undefined if they do not. */
  missing(agent: string): string | undefined;
  /** Returns the command line that runs this one confined. Release it after the command has ended. */
  confine(argv: Argv, place: SandboxPlace): Promise<Confined>;
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
  ...base
}: BaseSettings & {
  wanted: AgentConfinement;
  /** Confinement of agents that differ. */
  agents: ReadonlyMap<string, AgentConfinement>;
  /** Maximum number of files that are hidden one by one: bubblewrap reads all mounts again for each. */
  maxMasks?: number;
  /** Directory for the temporary files of session trees; absent: those of each command are empty at first. */
  temporary?: string;
}): Promise<Sandbox> {
  const wall = [wanted, ...agents.values()].some(({ profile }) => profile !== "off");
  const filters = createSeccompFilters();
  const networks = createSessionNetworks();
  const sessions = createSessionDirectories(temporary);
  const problem = wall ? await startProblem(filters) : undefined;
  // Only these two fields: results contain them, and callers must not see other configuration.
  const actual = ({ profile, network }: SandboxConfinement) =>
    problem === undefined ? { profile, network } : unconfined;
  const settingsOf = (agent: string) => agents.get(agent) ?? wanted;
  const confinement = (agent: string) => actual(settingsOf(agent));
  const hidden = base.hidden.map(({ path }) => path);
  const files = { planner: createMountPlanner(), maskFile: findMaskFile(), hidden, maxMasks };
  const sources: readonly LayerSource[] = [
    (chosen, place) => baseLayer(chosen, place, base),
    (chosen, { session }) => sessions.share(chosen, session),
    (chosen, place) => fileLayer(chosen, place, files),
    ({ unixSockets = false, ptrace = false }) => filters.share({ unixSockets, ptrace }),
    () => limitsShare(commandLimits),
    ({ network }, place) => (network === "proxy" ? networks.share(place.network) : {}),
  ];
  return {
    state: actual(wanted),
    problem,
    confinement,
    missing: (agent) => (settingsOf(agent).profile === "off" ? undefined : problem),
    async confine(argv, place) {
      if (confinement(place.agent).profile === "off") return unconfinedCommand(argv);
      return composeLayers(program, await collectShares(sources, settingsOf(place.agent), place), argv);
    },
    sweep: sessions.sweep,
    close() {
      filters.close();
      networks.close();
    },
  };
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

/** Returns a command line as it is. */
function unconfinedCommand(argv: Argv): Confined {
  return { argv, env: {}, descriptors: [], covered: { hidden: [], readOnly: [] }, release: async () => {} };
}

const program = "bwrap";
/** Only a probe that hangs takes so long: a machine that is busy at the start must not lose its sandbox. */
const maxProbeMs = 30_000;
const unconfined: SandboxConfinement = { profile: "off", network: "open" };

/** Probes the sandbox; returns the reason why it cannot start, undefined if it can. */
async function startProblem(filters: SeccompFilters): Promise<string | undefined> {
  const place = { agent: "", cwd: "/", workspace: tmpdir(), directories: [] };
  const base = baseLayer({ profile: "read-only", network: "none" }, place, { writable: [], hidden: [] });
  const filter = filters.share({ unixSockets: false, ptrace: false });
  const probe = composeLayers(program, [base, filter, limitsShare(commandLimits)], ["true"]);
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
