import type { FileRules } from "../policy/file-rules.ts";

/** A path that is covered by a mount, and the reason. */
export interface Covered {
  readonly path: string;
  /** True if it covers everything below, too. */
  readonly isDirectory?: boolean;
  readonly reason: string;
}

/** A program and its arguments. */
export type Argv = readonly [string, ...string[]];

/** The parts of bubblewrap's command line, in their order: a later mount covers an earlier one. */
const layerOrder = [
  "namespaces",
  "base",
  "directories",
  "pins",
  "readOnly",
  "masks",
  "hidden",
  "root",
  "network",
  "seccomp",
] as const;

/** A part of the sandbox that holds for a command, as results name it. */
export type WallLayer = "disk" | "processes" | "files" | "network" | "system_calls" | "limits" | "cgroup";

/** One part of bubblewrap's command line. */
export type LayerName = (typeof layerOrder)[number];

/** An open file that bubblewrap inherits, with the option that takes the number of its descriptor, or for the command: also a new pipe. */
export type InheritedFile =
  | { descriptor: number | "pipe"; option?: never }
  | {
      descriptor: number;
      option: string;
      /** The path inside, for an option that mounts the file. */
      path?: string;
      layer: LayerName;
    };

/** Limits of all processes of a command together, which the service watches. */
export interface UsageLimits {
  readonly maxMemoryBytes: number;
  readonly maxProcesses: number;
  /** Directories on disks of which a part is reserved for others. */
  readonly directories: readonly string[];
  /** Paths of file systems in memory that belong to the command alone, and count as its memory. */
  readonly inMemory: readonly string[];
}

/** A share of the confinement of one command. */
export interface LayerShare {
  args?: Partial<Record<LayerName, readonly string[]>>;
  usage?: Omit<UsageLimits, "inMemory">;
  /** Differs between shares of the same source that do not make the same, although their arguments are equal. */
  version?: string;
  /** Paths of file systems in memory that it mounts for the command alone. */
  inMemory?: readonly string[];
  /** The parts of the sandbox that it makes. */
  layers?: readonly WallLayer[];
  /** A program that starts bubblewrap, with its arguments, such as nsenter. */
  enter?: readonly string[];
  /** A line for the shell that starts the command inside. Without any the command starts by itself. */
  script?: string;
  /** Environment variables of the command. */
  env?: Readonly<Record<string, string>>;
  files?: readonly InheritedFile[];
  /** Paths that the command does not see, and those that it cannot change. */
  covered?: CoveredPaths;
  /** Returns the limit that the kernel ended the command for; called after the command has ended, before `release`. */
  exceeded?(): string | undefined;
  /** Lists what the command made although it may not; called after the command has ended, before `release`. */
  created?(): Promise<readonly Covered[]>;
  /** Lists what rules restrict now and this share does not cover; for processes that outlive single calls. */
  uncovered?(rules: FileRules): Promise<readonly Covered[]>;
  /** Paths outside of which the command sees nothing of the disk. */
  visible?: readonly string[];
  /** Checks the mounts before the command starts: gets the ID of a process inside, returns the reason why it must not start. */
  check?(pid: number): string | undefined | Promise<string | undefined>;
  /**
   * Keeps outside of the workspace, without any command, what mounts that were made need; called before `release`. Returns the function
   * that frees it; undefined if that is not possible.
   */
  rest?(): (() => void) | undefined;
  /** Frees what the share holds; called once, after the command and its other processes have ended. */
  release?(): Promise<void>;
}

/** Paths inside that a command cannot read, or not change, with the rule that says so. */
export interface CoveredPaths {
  readonly hidden: readonly Covered[];
  readonly readOnly: readonly Covered[];
  /** Paths that do not exist and cannot be made; inside each of them is an empty directory. */
  readonly absent: readonly Covered[];
}

/** A command line that runs confined. */
export interface Confined {
  argv: Argv;
  /** Lets a sandbox that waited become the command, with this environment, instead of a program that is started. */
  begin?: (env: Readonly<Record<string, string>>) => void;
  /** Environment variables to add. */
  env: Readonly<Record<string, string>>;
  /** Open files that the program inherits, from descriptor 3 on, as `spawn` takes them. The caller closes none of them. */
  descriptors: readonly InheritedFile["descriptor"][];
  covered: CoveredPaths;
  /** Limits that the caller watches while the command runs; undefined without a sandbox. */
  usage: UsageLimits | undefined;
  /** The parts of the sandbox that hold for the command; empty without one. */
  layers: readonly WallLayer[];
  /** Returns the limit that the kernel ended the command for; call it after the command has ended, before `release`. */
  exceeded(): string | undefined;
  /** Lists what the command made although it may not; call it after the command has ended, before `release`. */
  created(): Promise<readonly Covered[]>;
  /** Lists what rules restrict now and this confinement does not cover; for processes that outlive single calls. */
  uncovered(rules: FileRules): Promise<readonly Covered[]>;
  /** Paths outside of which the command sees nothing of the disk. */
  visible: readonly string[];
  /** Frees what the confinement holds; call it once, after the command and its other processes have ended. */
  release(): Promise<void>;
}

/** Composes the shares into one command line: of each layer the arguments of all shares, in the order of the shares. */
export function composeLayers(program: string, shares: readonly LayerShare[], argv: Argv): Confined {
  const files = shares.flatMap(({ files = [] }) => files);
  const inherited = files.flatMap((file, i) => {
    if (file.option === undefined) return [];
    const { layer, option, path } = file;
    return [{ layer, args: [option, String(i + firstInheritedDescriptor), ...(path === undefined ? [] : [path])] }];
  });
  const args = layerOrder.flatMap((layer) => [
    ...shares.flatMap((share) => share.args?.[layer] ?? []),
    ...inherited.flatMap((file) => (file.layer === layer ? file.args : [])),
  ]);
  const [first = program, ...others] = [
    ...shares.flatMap(({ enter = [] }) => enter),
    ...[program, ...args, "--"],
    ...shellFor(shares.flatMap(({ script = [] }) => script)),
    ...argv,
  ];
  const usage = shares.find(({ usage }) => usage)?.usage;
  return {
    argv: [first, ...others],
    env: Object.assign({}, ...shares.map(({ env }) => env)),
    descriptors: files.map(({ descriptor }) => descriptor),
    covered: {
      hidden: shares.flatMap(({ covered }) => covered?.hidden ?? []),
      readOnly: shares.flatMap(({ covered }) => covered?.readOnly ?? []),
      absent: shares.flatMap(({ covered }) => covered?.absent ?? []),
    },
    usage: usage && { ...usage, inMemory: shares.flatMap(({ inMemory = [] }) => inMemory) },
    layers: shares.flatMap(({ layers = [] }) => layers),
    exceeded: () => shares.map(({ exceeded }) => exceeded?.()).find((reason) => reason !== undefined),
    created: async () => (await Promise.all(shares.map(({ created }) => created?.() ?? []))).flat(),
    uncovered: async (rules) => (await Promise.all(shares.map(({ uncovered }) => uncovered?.(rules) ?? []))).flat(),
    visible: shares.flatMap(({ visible = [] }) => visible),
    release: () => releaseShares(shares),
  };
}

/** Returns a shell that runs these lines, and then becomes the command: one for all, since each takes a millisecond to start. */
const shellFor = (lines: readonly string[]) =>
  lines.length === 0 ? [] : ["/bin/sh", "-c", [...lines, 'exec "$@"'].join("\n"), "sh"];

/** Frees what shares hold, the last one first. */
export async function releaseShares(shares: readonly LayerShare[]): Promise<void> {
  for (const { release } of shares.toReversed()) await release?.();
}

/** The first descriptor after those of stdin, stdout and stderr. */
export const firstInheritedDescriptor = 3;
