import { closeSync, openSync, readFileSync, statSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import type { AgentConfinement } from "./confinement.ts";
import { identityOf } from "./git-directories.ts";
import {
  type Argv,
  type Confined,
  composeLayers,
  firstInheritedDescriptor,
  type LayerShare,
  releaseShares,
} from "./layers.ts";

/** Opens pipes of the kernel; the caller closes both descriptors. */
export interface GatePipes {
  open(): Promise<{ reader: number; writer: number }>;
}

/** Checks the mounts of a command; gets the ID of a process inside, and returns the reason why the command must not start. */
type GateCheck = (pid: number) => Promise<string | undefined>;

/**
 * Holds a command between its mounts and its start. The share has to be the first one, since its shell names the descriptors.
 * With `lines` the shell runs those after the check has passed.
 */
export async function gateShare(pipes: GatePipes, check: GateCheck, lines?: () => string): Promise<LayerShare> {
  const report = await pipes.open();
  const answer = await openBlocking(pipes).catch((error: unknown) => {
    closeSync(report.reader);
    closeSync(report.writer);
    throw error;
  });
  const open = new Set([report.writer, answer.reader, answer.writer]);
  const socket = new Socket({ fd: report.reader, readable: true, writable: false });
  let text = "";
  let isReleased = false;
  async function decide(): Promise<void> {
    const said = await verdict(text, check);
    // The command has been killed meanwhile, and the descriptor may be that of another file.
    if (isReleased) return;
    writeSync(answer.writer, `${said}\n${said === go ? (lines?.() ?? "") : ""}`);
    open.delete(answer.writer);
    // The lines end with the pipe.
    closeSync(answer.writer);
  }
  socket.setEncoding("utf8").on("data", (chunk: string) => {
    text += chunk;
    if (!text.endsWith(ready)) return;
    socket.pause();
    void decide();
  });
  return {
    files: [
      { descriptor: report.writer, option: "--info-fd", layer: "namespaces" },
      { descriptor: report.writer },
      { descriptor: answer.reader },
    ],
    script: lines ? scriptOfLines : script,
    async release() {
      isReleased = true;
      socket.destroy();
      for (const descriptor of open) closeSync(descriptor);
    },
  };
}

/** Passes two pipes to the program, as descriptors 3 and 4. The share follows those that are given, since its shell names the descriptors. */
export function pipesShare(before: readonly LayerShare[]): LayerShare {
  const first = firstInheritedDescriptor + before.flatMap(({ files = [] }) => files).length;
  const second = first + 1;
  const move = `exec 3<&${first} 4>&${second} ${first}<&- ${second}>&-`;
  return {
    files: [{ descriptor: "pipe" }, { descriptor: "pipe" }],
    ...(first !== firstInheritedDescriptor && { script: move }),
  };
}

/** Opens a pipe of which the reader waits. */
async function openBlocking(pipes: GatePipes): ReturnType<GatePipes["open"]> {
  const { reader, writer } = await pipes.open();
  try {
    return { reader: openSync(`/proc/self/fd/${reader}`, "r"), writer };
  } catch (error) {
    closeSync(writer);
    throw error;
  } finally {
    closeSync(reader);
  }
}

const ready = "ready\n";
const go = "go";
/** The descriptors are those of the share's files: bubblewrap writes to 3. */
const wait = `echo ready >&4; read -r answer <&5; exec 3>&- 4>&-`;
const judge = `[ "$answer" = ${go} ] || { echo "toolgate: $answer" >&2; exit 126; }`;
const script = `${wait} 5<&-; ${judge}`;
const scriptOfLines = `${wait}; ${judge}`;

/** Makes the lines that become a command with an environment, where another one was known at the start of the shell. */
function commandLines(argv: Argv, env: Environment, before: Environment): string {
  const gone = Object.keys(before).filter((name) => env[name] === undefined);
  const changed = Object.entries(env).filter(([name, value]) => before[name] !== value);
  return [
    "exec 5<&-",
    ...gone.map((name) => `unset ${name}`),
    ...changed.map(([name, value]) => `export ${name}=${quoted(value)}`),
    `exec ${argv.map(quoted).join(" ")}`,
    "",
  ].join("\n");
}

type Environment = Readonly<Record<string, string>>;

const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

async function verdict(text: string, check: GateCheck): Promise<string> {
  const [, pid] = /"child-pid": (\d+)/.exec(text) ?? [];
  try {
    return (await check(Number(pid)))?.replaceAll("\n", " ") ?? go;
  } catch (error) {
    return `nothing was run, since its mounts cannot be checked: ${String(error)}`;
  }
}

/** A sandbox that waits with its mounts made. It becomes a command whose own sandbox would be the same. */
export interface Spare extends Pick<Confined, "argv" | "env" | "descriptors"> {
  /** Resolves when it waits, and the workspace holds nothing of it; rejects if it cannot wait. */
  readonly ready: Promise<void>;
  /** Returns the lines by which it would become a command with this environment. */
  lines(argv: Argv, env: Environment): string;
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
  env: Environment,
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
