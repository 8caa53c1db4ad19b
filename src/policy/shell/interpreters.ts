import { type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";
import { dangersOf, type OptionTable, optionReader } from "./options.ts";

/** Interpreters by name. All are strict, and end their options at the script. */
const interpreters: ReadonlyMap<string, OptionTable> = new Map(
  Object.entries<OptionTable>({
    julia: {},
    lua: { flag: "-v -E -W", run: "-e -l -i" },
    node: {
      flag: "-h --help -v --version -c --check --test --watch --trace-warnings --no-warnings --enable-source-maps --trace-uncaught --trace-deprecation --no-deprecation --experimental-strip-types --expose-gc --preserve-symlinks",
      maybe: "--max-old-space-size --stack-size",
      text: "--test-name-pattern --test-reporter --input-type --test-concurrency --unhandled-rejections",
      read: "--env-file",
      run: "-e --eval -p --print -r --require --import --loader --experimental-loader --inspect --inspect-brk --run -i --interactive -C --conditions",
    },
    osascript: { run: "-e" },
    perl: { flag: "-w -W -X -c -v -t -T", run: "-e -E -M -m -I -n -p -i -x -d -D -l -a -F -0 -s -S -C" },
    php: { flag: "-l -v -h -m -q", run: "-r -f -B -R -E -F -d -c -a -S -t -z" },
    pwsh: { run: "-c -Command -File -EncodedCommand" },
    python: {
      flag: "-B -E -I -O -OO -S -s -u -v -q -b -x -V -VV --version -h --help -P",
      text: "-W -X --check-hash-based-pycs",
      run: "-c -m -i",
    },
    Rscript: { run: "-e" },
    ruby: { flag: "-w -W -c -v -h --version --help", run: "-e -r -I -n -p -i -x -S -C -s -l -a -F -E -K" },
    tclsh: {},
    "ts-node": { run: "-e -p -r --eval --print --require --cwd --project -P -C --compiler" },
    tsx: { run: "-e --eval -p --print -r --require --import" },
  }),
);
const shells = new Set("sh bash dash zsh ksh ash mksh rbash fish".split(" "));
const shellReader = optionReader({ flag: "-c -e -u -x -v -n -f --norc --noprofile --posix", text: "-o", run: "+" });
const readers = new Map([...interpreters].map(([name, table]) => [name, optionReader(table)]));

/** Returns the name of an interpreter without its version: `python3.12` is `python`. Undefined for other programs. */
export function interpreter(name: string): string | undefined {
  const plain = name === "nodejs" ? "node" : name.replace(/[\d.]+$/, "");
  return shells.has(plain) || interpreters.has(plain) ? plain : undefined;
}

/** Adds what an interpreter runs: a line for a shell, a script to which an approval is bound, or code that rules do not see. */
export function interpret(name: string, words: readonly Word[], input: string | undefined, effects: Effects): void {
  const { options, operands } = (readers.get(name) ?? shellReader)(words, 1, true);
  effects.dangers.push(...dangersOf(name, options));
  for (const { means, value } of options) {
    if (means === "read" && value) effects.uses.push(...usesIn(value, "read"));
  }
  const [first, ...rest] = operands;
  const isShell = shells.has(name);
  const isLine = isShell && options.some(({ name }) => name === "-c");
  const foreign = /^r?bash$/.test(name) ? {} : { opaque: `a line for ${name}, which is not bash` };
  for (const { word } of rest) effects.uses.push(...usesIn(word, "may"));
  if (first && isLine) {
    effects.inner.push({ line: first.word.value, at: first.at, ...foreign });
    return;
  }
  if (first && first.word.value !== "-" && !isInput.test(first.word.value)) {
    effects.scripts.push(first.word.value);
    effects.uses.push({ path: first.word.value, glob: first.word.glob, as: "read" });
    return;
  }
  if (isShell && input !== undefined) effects.inner.push({ line: input, at: 0, ...foreign });
  else if (!onlyTells(options))
    effects.dangers.push({ at: Number.POSITIVE_INFINITY, why: "its program comes from its input" });
}

/** The standard input by a path. */
const isInput = /(^|\/)(dev\/(stdin|fd\/\d+)|proc\/.*\/fd\/\d+)$/;

function onlyTells(options: readonly { name: string; means: unknown }[]): boolean {
  return options.some(({ name, means }) => means === "run" || /^(-v|-V|-VV|-h|--version|--help|--test)$/.test(name));
}
