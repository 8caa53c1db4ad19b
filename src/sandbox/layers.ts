/** A path that is covered by a mount, and the reason. */
export interface Covered {
  readonly path: string;
  readonly reason: string;
}

/** A program and its arguments. */
export type Argv = readonly [string, ...string[]];

/** The parts of bubblewrap's command line, in their order: a later mount covers an earlier one. */
export const layerOrder = [
  "namespaces",
  "base",
  "directories",
  "pins",
  "readOnly",
  "masks",
  "hidden",
  "network",
  "seccomp",
] as const;

/** One part of bubblewrap's command line. */
export type LayerName = (typeof layerOrder)[number];

/** An open file that bubblewrap inherits, and the option that takes the number of its descriptor. */
export interface InheritedFile {
  descriptor: number;
  option: string;
  layer: LayerName;
}

/** A share of the confinement of one command. */
export interface LayerShare {
  args?: Partial<Record<LayerName, readonly string[]>>;
  /** A program that starts bubblewrap, with its arguments, such as nsenter. */
  enter?: readonly string[];
  /** A program that starts the command inside, with its arguments. */
  inside?: readonly string[];
  /** Environment variables of the command. */
  env?: Readonly<Record<string, string>>;
  files?: readonly InheritedFile[];
  /** Paths that the command does not see, and those that it cannot change. */
  covered?: CoveredPaths;
  /** Frees what the share holds; called once, after the command and its other processes have ended. */
  release?(): Promise<void>;
}

/** Paths inside that a command cannot read, or not change, with the rule that says so. */
export interface CoveredPaths {
  readonly hidden: readonly Covered[];
  readonly readOnly: readonly Covered[];
}

/** A command line that runs confined. */
export interface Confined {
  argv: Argv;
  /** Environment variables to add. */
  env: Readonly<Record<string, string>>;
  /** Open files that the program inherits, from descriptor 3 on. The caller closes none of them. */
  descriptors: readonly number[];
  covered: CoveredPaths;
  /** Frees what the confinement holds; call it once, after the command and its other processes have ended. */
  release(): Promise<void>;
}

/** Composes the shares into one command line: of each layer the arguments of all shares, in the order of the shares. */
export function composeLayers(program: string, shares: readonly LayerShare[], argv: Argv): Confined {
  const files = shares.flatMap(({ files = [] }) => files);
  const inherited = files.map(({ layer, option }, i) => ({ layer, args: [option, String(i + firstDescriptor)] }));
  const args = layerOrder.flatMap((layer) => [
    ...shares.flatMap((share) => share.args?.[layer] ?? []),
    ...inherited.flatMap((file) => (file.layer === layer ? file.args : [])),
  ]);
  const [first = program, ...others] = [
    ...shares.flatMap(({ enter = [] }) => enter),
    ...[program, ...args, "--"],
    ...shares.flatMap(({ inside = [] }) => inside),
    ...argv,
  ];
  return {
    argv: [first, ...others],
    env: Object.assign({}, ...shares.map(({ env }) => env)),
    descriptors: files.map(({ descriptor }) => descriptor),
    covered: {
      hidden: shares.flatMap(({ covered }) => covered?.hidden ?? []),
      readOnly: shares.flatMap(({ covered }) => covered?.readOnly ?? []),
    },
    release: () => releaseShares(shares),
  };
}

/** Frees what shares hold, the last one first. */
export async function releaseShares(shares: readonly LayerShare[]): Promise<void> {
  for (const { release } of shares.toReversed()) await release?.();
}

/** The first descriptor after those of stdin, stdout and stderr. */
const firstDescriptor = 3;
