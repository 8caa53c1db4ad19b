import { type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { dangersOf, type OptionTable, optionReader } from "./options.ts";

interface Interpreter extends OptionTable {
  /** Options without a script with which it reads no program from its input: they carry one, or only report something. */
  alone?: string;
}

/** Interpreters by name. All are strict, and end their options at the script. */
const interpreters: ReadonlyMap<string, Interpreter> = new Map(
  Object.entries<Interpreter>({
    julia: {},
    lua: { flag: "-v -E -W", code: "-l", run: "-e -i", alone: "-e -v" },
    node: {
      flag: "-h --help -v --version -c --check --test --watch --trace-warnings --no-warnings --enable-source-maps --trace-uncaught --trace-deprecation --no-deprecation --experimental-strip-types --expose-gc --preserve-symlinks",
      maybe: "--max-old-space-size --stack-size",
      text: "--test-name-pattern --test-reporter --input-type --test-concurrency --unhandled-rejections",
      read: "--env-file",
      code: "-r --require --import --loader --experimental-loader -C --conditions",
      run: "-e --eval -p --print --inspect --inspect-brk --run -i --interactive",
      alone: "-e --eval -p --print --run --test -h -v",
    },
    osascript: { run: "-e", alone: "-e" },
    perl: {
      flag: "-w -W -X -c -v -t -T",
      code: "-I",
      run: "-e -E -M -m -n -p -i -x -d -D -l -a -F -0 -s -S -C",
      alone: "-e -E -v",
    },
    php: {
      flag: "-l -v -h -m -q",
      code: "-d -c -z",
      run: "-r -f -B -R -E -F -a -S -t",
      alone: "-r -f -R -F -S -v -h -m",
    },
    pwsh: { run: "-c -Command -File -EncodedCommand" },
    python: {
      flag: "-B -E -I -O -OO -S -s -u -v -q -b -x -V -VV --version -h --help -P",
      text: "-W -X --check-hash-based-pycs",
      run: "-c -m -i",
      alone: "-c -m -V -VV -h",
    },
    Rscript: { run: "-e", alone: "-e" },
    ruby: {
      flag: "-w -W -c -v -h --version --help",
      code: "-r -I -C -E",
      run: "-e -n -p -i -x -S -s -l -a -F -K",
      alone: "-e -v -h",
    },
    tclsh: {},
    "ts-node": {
      code: "-r --require --cwd --project -P -C --compiler",
      run: "-e -p --eval --print",
      alone: "-e -p --eval --print",
    },
    tsx: { code: "-r --require --import", run: "-e --eval -p --print", alone: "-e --eval -p --print" },
  }),
);
const shells = new Set("sh bash dash zsh ksh ash mksh rbash fish".split(" "));
const shellReader = optionReader({ flag: "-c -e -u -x -v -n -f --norc --noprofile --posix", next: "-o -O", run: "+" });
const readers = new Map([...interpreters].map(([name, table]) => [name, optionReader(table)]));

/** Returns the name of an interpreter without its version: `python3.12` is `python`. Undefined for other programs. */
export function interpreter(name: string): string | undefined {
  const plain = name === "nodejs" ? "node" : name.replace(/[\d.]+$/, "");
  return shells.has(plain) || interpreters.has(plain) ? plain : undefined;
}

/**
 * Adds what an interpreter runs: a line for a shell, a script to which an approval is bound, or code that rules do not see. Returns
 * true if it reads a program from its input.
 */
export function interpret(name: string, words: readonly Word[], input: string | undefined, effects: Effects): boolean {
  const { options, operands } = (readers.get(name) ?? shellReader)(words, 1, true);
  const isShell = shells.has(name);
  const has = (names: string) => options.some(({ name }) => names.split(" ").includes(name));
  effects.dangers.push(...dangersOf(name, options));
  for (const { name: option, means, value, at } of options) {
    if (value && (means === "read" || means === "code"))
      effects.uses.push(...usesIn(value, means === "read" ? "read" : "may"));
    if (option === "--test-reporter" && value && !/^(dot|junit|lcov|spec|tap)$/.test(value.value))
      effects.dangers.push({ at, why: `the reporter ${value.value} is code` });
  }
  // A shell takes one `-` for the end of its options.
  const isEnd = isShell && operands[0]?.word.value === "-" && words[operands[0].at - 1]?.value !== "--";
  const [first, ...rest] = isEnd ? operands.slice(1) : operands;
  const foreign = /^r?bash$/.test(name) ? {} : { opaque: `a line for ${name}, which is not bash` };
  for (const { word } of rest) effects.uses.push(...usesIn(word, "may"));
  if (first && isShell && has("-c")) {
    effects.inner.push({ line: first.word.value, at: first.at, ...foreign });
    return false;
  }
  const isAlone = first === undefined && has(`--version --help ${interpreters.get(name)?.alone ?? ""}`);
  const isScript = first !== undefined && first.word.value !== "-" && !isInput(first.word);
  if (isScript) {
    effects.scripts.push(first.word.value);
    effects.uses.push({ path: first.word.value, glob: first.word.glob, as: "read" });
  }
  if (isAlone || (isScript && !(isShell && has("-s")))) return false;
  if (isShell && input !== undefined) effects.inner.push({ line: input, at: 0, ...foreign });
  else effects.dangers.push({ at: Number.POSITIVE_INFINITY, why: "its program comes from its input" });
  return true;
}

/** Checks for the standard input by a path. */
export const isInput = ({ value }: Word) => /(^|\/)(dev\/(stdin|fd\/\d+)|proc\/.*\/fd\/\d+)$/.test(value);
