import { execFile } from "node:child_process";
import { tmpdir } from "node:os";
import { promisify } from "node:util";
import { type BaseSettings, baseLayer } from "./base-layer.ts";
import type { SandboxConfinement, SandboxPlace } from "./confinement.ts";
import { type Argv, type Confined, composeLayers, type LayerShare, releaseShares } from "./layers.ts";

/** Enforces confinement in the kernel, after policy has allowed a command. */
export interface Sandbox {
  /** Confinement of agents without a specific setting; `off` also if the sandbox cannot start. */
  readonly state: SandboxConfinement;
  /** Reason why it is off although it was configured, and the next step. */
  readonly problem: string | undefined;
  /** Returns the confinement of an agent's commands. */
  confinement(agent: string): SandboxConfinement;
  /** Returns the command line that runs this one confined. Release it after the command has ended. */
  confine(argv: Argv, place: SandboxPlace): Promise<Confined>;
}

/** Adds a share to the confinement of each command. */
type LayerSource = (confinement: SandboxConfinement, place: SandboxPlace) => LayerShare | Promise<LayerShare>;

/** Opens the sandbox; probes once whether bubblewrap can start here. */
export async function openSandbox({
  wanted,
  agents,
  ...base
}: BaseSettings & {
  wanted: SandboxConfinement;
  /** Confinement of agents that differ. */
  agents: ReadonlyMap<string, SandboxConfinement>;
}): Promise<Sandbox> {
  const wall = [wanted, ...agents.values()].some(({ profile }) => profile !== "off");
  const problem = wall ? await startProblem() : undefined;
  // Only these two fields: results contain them, and callers must not see other configuration.
  const actual = ({ profile, network }: SandboxConfinement) =>
    problem === undefined ? { profile, network } : unconfined;
  const confinement = (agent: string) => actual(agents.get(agent) ?? wanted);
  const sources: readonly LayerSource[] = [(chosen, place) => baseLayer(chosen, place, base)];
  return {
    state: actual(wanted),
    problem,
    confinement,
    async confine(argv, place) {
      const chosen = confinement(place.agent);
      if (chosen.profile === "off") return { argv, env: {}, descriptors: [], release: async () => {} };
      return composeLayers(program, await collectShares(sources, chosen, place), argv);
    },
  };
}

/** Collects the shares in turn; frees those that exist if one fails. */
async function collectShares(
  sources: readonly LayerSource[],
  confinement: SandboxConfinement,
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

const program = "bwrap";
/** Only a probe that hangs takes so long: a machine that is busy at the start must not lose its sandbox. */
const maxProbeMs = 30_000;
const unconfined: SandboxConfinement = { profile: "off", network: true };

/** Probes the sandbox; returns the reason why it cannot start, undefined if it can. */
async function startProblem(): Promise<string | undefined> {
  try {
    const place = { agent: "", cwd: "/", workspace: tmpdir(), directories: [] };
    const base = baseLayer({ profile: "read-only", network: false }, place, { writable: [], hidden: [] });
    const [file, ...args] = composeLayers(program, [base], ["true"]).argv;
    await promisify(execFile)(file, args, { timeout: maxProbeMs });
    return undefined;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") {
      return "bubblewrap is not installed: apt-get install bubblewrap, then start the service again";
    }
    const said = error instanceof Error && "stderr" in error ? String(error.stderr).trim() : String(error);
    return `bubblewrap cannot start here (${said || String(error)}): allow user namespaces, in a container for instance with --security-opt seccomp=unconfined, or set profile = "off" under [sandbox]`;
  }
}
