import { readCommand } from "./command.ts";

/** The words of a command line of one plain program; undefined where the line may hold anything else. */
export function coverableWords(line: string): string[] | undefined {
  const { simple, words } = readCommand(line);
  return simple ? [...words] : undefined;
}

/** The words that an offer for similar commands keeps; undefined where none may be made: the words of other programs, or code. */
export function prefixOf(line: string): string[] | undefined {
  const [program, ...rest] = coverableWords(line) ?? [];
  if (program === undefined || program.includes("/") || runsOthers.has(program.replace(/[\d.]+$/, "")))
    return undefined;
  const kept = arity.get(program) ?? 1;
  const named = rest.slice(0, kept - 1);
  return named.length < kept - 1 || named.some((word) => !/^[a-z][\w:-]*$/.test(word))
    ? undefined
    : [program, ...named];
}

/** Programs that run what stands behind them, or code. */
const runsOthers = new Set(
  "awk bash builtin bun bunx busybox chroot command coproc dash deno doas docker env eval exec expect find fish flock gdb ionice java kubectl lua make nice node nohup npx nsenter parallel perl php pip pipx pnpx podman python rlwrap ruby script sed setsid sh sqlite ssh stdbuf strace su sudo tclsh time timeout ts-node tsx unshare uv uvx vim watch xargs zsh".split(
    " ",
  ),
);

/** How many words say what a program does; one if it is not here. */
const arity = new Map([
  ...[
    "apt",
    "brew",
    "bun",
    "cargo",
    "composer",
    "gh",
    "git",
    "go",
    "helm",
    "kubectl",
    "mvn",
    "systemctl",
    "terraform",
  ].map((program) => [program, 2] as const),
  ...["npm", "pnpm", "yarn"].map((program) => [program, 2] as const),
]);
