import { spawn } from "node:child_process";
import { chmod, cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { seed as seedOfTests } from "../seed.ts";
import mutants from "./mutants.json" with { type: "json" };

// npm run test:mutants -- [--sample N] [--seed S] [--only TEXT]: breaks one law at a time, in a copy of the source, and runs the
// tests that must notice. TEXT is a part of the law, or of the path of its file. Fails if a fault goes unnoticed, or if its text is no
// longer in its file.

/** One fault made by hand. */
interface Mutant {
  /** The law that it breaks. */
  law: string;
  file: string;
  /** The exact text, which occurs once in the file. */
  text: string;
  /** Its replacement. */
  by: string;
  tests: string[];
  /** Pattern of the names of the tests; default: all tests of the files. */
  test?: string;
}

/** A run that takes longer has noticed its fault. */
const mutantMs = 300_000;
/** All tests that notice a mutant took 8 minutes. */
const baseMs = 3_600_000;

const root = join(import.meta.dirname, "../..");
const { values } = parseArgs({
  options: { sample: { type: "string" }, seed: { type: "string" }, only: { type: "string" } },
});
const all: readonly Mutant[] = mutants;
const seed = Number(values.seed ?? seedOfTests);

const stale = await staleMutants();
for (const { law, file, test } of stale) {
  const named = test === undefined ? "" : `, or no test is named "${test}"`;
  console.error(`stale: ${law}: its text does not occur exactly once in ${file}${named}`);
}
const chosen = values.only === undefined ? sampleOf(all) : all.filter(isNamed);
if (chosen.length === 0) console.error(`no law and no file has "${values.only}" in its name`);
const unnoticed = stale.length > 0 || chosen.length === 0 ? [] : await runMutants(chosen);
for (const { law, file } of unnoticed) console.error(`unnoticed: ${law} (${file})`);
process.exitCode = stale.length + unnoticed.length > 0 || chosen.length === 0 ? 1 : 0;

function isNamed({ law, file }: Mutant): boolean {
  const text = values.only ?? "";
  return law.includes(text) || file.includes(text);
}

/** Finds mutants whose text or test was changed by later work: adapt them. */
async function staleMutants(): Promise<Mutant[]> {
  const read = (file: string) => readFile(join(root, file), "utf8").catch(() => "");
  const isCurrent = async ({ file, text, tests, test = "" }: Mutant) => {
    const [source, ...texts] = await Promise.all([file, ...tests].map(read));
    // A pattern that names no test would run none, and pass.
    return source?.split(text).length === 2 && texts.some((one) => new RegExp(test).test(one)) && !texts.includes("");
  };
  const found = await Promise.all(all.map(isCurrent));
  return all.filter((_, i) => !found[i]);
}

/** Draws the wanted number of mutants; the same seed draws the same ones. */
function sampleOf(mutants: readonly Mutant[]): Mutant[] {
  if (values.sample === undefined) return [...mutants];
  const left = [...mutants];
  let state = seed;
  const draw = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return left.splice(Math.floor((state / 2 ** 32) * left.length), 1);
  };
  return Array.from({ length: Math.min(Number(values.sample), left.length) }, draw).flat();
}

/** Applies each mutant in a copy of the source, two at a time, and returns those that no test notices. */
async function runMutants(mutants: readonly Mutant[]): Promise<Mutant[]> {
  console.log(`${mutants.length} of ${all.length} mutants, seed ${seed}`);
  const copies: [string, ...string[]] = [await copySource(), ...(mutants.length > 1 ? [await copySource()] : [])];
  try {
    for (const [files, name] of testsOf(mutants)) {
      const before = await runTests(copies[0], { files, name, timeout: baseMs });
      if (before.failed) throw new Error(`the tests fail without a fault:\n${before.output}`);
    }
    const left = [...mutants];
    const survivors: Mutant[] = [];
    const runRest = async (copy: string) => {
      for (let next = left.shift(); next !== undefined; next = left.shift())
        if (!(await isNoticed(next, copy))) survivors.push(next);
    };
    await Promise.all(copies.map(runRest));
    return survivors;
  } finally {
    await Promise.all(copies.map((copy) => rm(copy, { recursive: true })));
  }
}

/** Applies a mutant in a copy, runs the tests that must notice it, and takes it back. */
async function isNoticed({ law, file, text, by, tests, test }: Mutant, copy: string): Promise<boolean> {
  const path = join(copy, file);
  const source = await readFile(path, "utf8");
  await writeFile(
    path,
    source.replace(text, () => by),
  );
  const { failed } = await runTests(copy, { files: tests, name: test, timeout: mutantMs, bail: 1 });
  await writeFile(path, source);
  console.log(`${failed ? "noticed" : "UNNOTICED"}: ${law}`);
  return failed;
}

/** Returns the files whose tests notice mutants: those of which all tests do, and each of the others with the names that mutants give. */
function testsOf(mutants: readonly Mutant[]): [files: readonly string[], name?: string][] {
  const whole = new Set(mutants.flatMap(({ tests, test }) => (test === undefined ? tests : [])));
  const files = new Set(mutants.flatMap(({ tests }) => tests.filter((file) => !whole.has(file))));
  const namesIn = (file: string) =>
    new Set(mutants.flatMap(({ tests, test = "" }) => (tests.includes(file) ? test : [])));
  return [
    ...(whole.size === 0 ? [] : [[[...whole]] as [readonly string[]]]),
    ...[...files].map((file): [readonly string[], string] => [[file], [...namesIn(file)].join("|")]),
  ];
}

/** Copies what the tests need; dependencies are shared. The built console comes last: it is built again when a source is newer. */
async function copySource(): Promise<string> {
  const copy = await mkdtemp(join(tmpdir(), "toolgate-mutants-"));
  // Some tests run programs as another user.
  await chmod(copy, 0o755);
  const { output } = await run("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"], { cwd: root });
  for (const file of output.split("\0").filter((file) => file !== "")) {
    await mkdir(dirname(join(copy, file)), { recursive: true });
    await cp(join(root, file), join(copy, file)).catch(ignoreMissing);
  }
  await symlink(join(root, "node_modules"), join(copy, "node_modules"));
  await cp(join(root, "dist/console"), join(copy, "dist/console"), { recursive: true });
  return copy;
}

/** A file that was deleted and not committed is listed, and does not exist. */
function ignoreMissing(cause: NodeJS.ErrnoException): void {
  if (cause.code !== "ENOENT") throw cause;
}

/** Tests to run. */
interface Run {
  files: readonly string[];
  name?: string | undefined;
  timeout: number;
  /** Failed tests that end it. Vitest hangs where they end a run of many files. */
  bail?: number;
}

/** Runs tests of a copy. */
function runTests(copy: string, { files, name, timeout, bail = 0 }: Run) {
  const named = name === undefined ? [] : ["--testNamePattern", name];
  const options = ["--config", "test/faults/mutants.config.ts", `--bail=${bail}`, ...named];
  return run("npx", ["vitest", "run", ...options, ...files], { cwd: copy, timeout });
}

function run(
  command: string,
  args: readonly string[],
  options: { cwd: string; timeout?: number },
): Promise<{ failed: boolean; output: string }> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { ...options, stdio: ["ignore", "pipe", "pipe"] });
    const output: Buffer[] = [];
    child.stdout.on("data", (data: Buffer) => output.push(data));
    child.stderr.on("data", (data: Buffer) => output.push(data));
    child.on("error", reject);
    child.on("close", (code) => resolve({ failed: code !== 0, output: Buffer.concat(output).toString() }));
  });
}
