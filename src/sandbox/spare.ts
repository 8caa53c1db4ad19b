import { readFileSync, statSync } from "node:fs";
import type { AgentConfinement } from "./confinement.ts";
import { commandLines, type GatePipes, gateShare } from "./gate.ts";
import { identityOf } from "./git-directories.ts";
import { type Argv, type Confined, composeLayers, type LayerShare, releaseShares } from "./layers.ts";

/** A sandbox that waits with its mounts made. It becomes a command whose own sandbox would be the same. */
export interface Spare extends Pick<Confined, "argv" | "env" | "descriptors"> {
  /** Resolves when it waits, and the workspace holds nothing of it; rejects if it cannot wait. */
  readonly ready: Promise<void>;
  /** Returns the lines by which it would become a command with this environment. */
  lines(argv: Argv, env: Readonly<Record<string, string>>): string;
  /**
   * Checks it as the sandbox of a command with these shares, and returns the function that lets it become the command; undefined if
   * anything differs.
   */
  take(
    confinement: AgentConfinement,
    shares: readonly LayerShare[],
    argv: Argv,
  ): Promise<NonNullable<Confined["begin"]> | undefined>;
  /** Frees what it holds; called once, after its processes have ended. */
  end(): Promise<void>;
}

/** Makes the command line of a sandbox that waits, of these shares, and frees those once it waits. `env` are the variables that it is started with. */
export async function createSpare(
  program: string,
  pipes: GatePipes,
  confinement: AgentConfinement,
  shares: readonly LayerShare[],
  env: Readonly<Record<string, string>>,
): Promise<Spare> {
  const mounted = Promise.withResolvers<number>();
  const command = Promise.withResolvers<undefined>();
  const wanted = { lines: "" };
  const key = keyOf(confinement, shares);
  const holds = (pid: number) => {
    mounted.resolve(pid);
    return command.promise;
  };
  const gate = await gateShare(pipes, holds, () => wanted.lines);
  const composed = composeLayers(program, [gate, ...shares, { script: runLines }], ["false"]);
  const freed: (() => void)[] = [];
  const state = { mounts: "" };

  async function settle(): Promise<void> {
    try {
      const pid = await mounted.promise;
      const problem = await problemOf(pid, shares);
      if (problem !== undefined) throw new Error(problem);
      state.mounts = mountsOf(pid);
      for (const { rest } of shares) {
        const free = rest?.();
        if (free) freed.push(free);
        else if (rest) throw new Error("what its mounts need cannot be kept outside of the workspace");
      }
    } finally {
      await releaseShares(shares);
    }
  }

  const lines: Spare["lines"] = (argv, now) =>
    commandLines(argv, { ...now, ...composed.env }, { ...env, ...composed.env });
  const ready = settle();
  ready.catch(() => {});
  return {
    ...{ argv: composed.argv, env: composed.env, descriptors: composed.descriptors, ready, lines },
    async take(chosen, others, argv) {
      const pid = await mounted.promise;
      if (keyOf(chosen, others) !== key || (await problemOf(pid, others)) !== undefined) return undefined;
      // Last: a mount is gone with what it was on.
      if (mountsOf(pid) !== state.mounts) return undefined;
      return (now) => {
        wanted.lines = lines(argv, now);
        command.resolve(undefined);
      };
    },
    async end() {
      mounted.reject(new Error("it has ended before its mounts were made"));
      await ready.catch(() => {});
      for (const free of freed) free();
      await gate.release?.();
    },
  };
}

/** Reads the lines without a further program, which would take a millisecond. */
const runLines = `n='\n'; lines=; while IFS= read -r line; do lines="$lines$line$n"; done <&5; eval "$lines"\nexit 126`;

async function problemOf(pid: number, shares: readonly LayerShare[]): Promise<string | undefined> {
  const reasons = await Promise.all(shares.map(({ check }) => check?.(pid)));
  return reasons.find((reason) => reason !== undefined);
}

/** Describes a sandbox: two with the same text show the same files, with the same rights. */
function keyOf(confinement: AgentConfinement, shares: readonly LayerShare[]): string {
  const { argv, env } = composeLayers("", shares, ["false"]);
  const identities = argv.map((word) => (word.startsWith("/") ? [identityOf(word), targetOf(word)] : ""));
  return JSON.stringify([confinement, argv, env, identities, shares.flatMap(({ version = [] }) => version)]);
}

/** Returns the identity of what a path leads to over all links; undefined if that is nothing. */
function targetOf(path: string): string | undefined {
  try {
    const { dev, ino } = statSync(path, { bigint: true });
    return `${dev}:${ino}`;
  } catch {
    return undefined;
  }
}

/** Describes the mounts of a process and of this machine. */
const mountsOf = (pid: number) => `${readFileSync(`/proc/${pid}/mountinfo`)}\n${readFileSync("/proc/self/mountinfo")}`;
