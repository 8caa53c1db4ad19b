/**
 * Conformance kit for workers: `npm run conformance -- [OPTIONS] COMMAND…`. docs/worker-conformance.md describes the tools that the
 * command serves, and the rules that are checked.
 */
import type { KitCase, Unexpected } from "./kit.ts";
import { allCases, runCase, withServices } from "./run-cases.ts";

const usage = `usage: npm run conformance -- [--core] [--case NAME]… [--jobs N] [--timeout SECONDS] COMMAND…

--core      only the cases that each worker has to pass
--case      only this case; may be repeated
--jobs      cases at a time (default 4)
--timeout   seconds that a case waits for an event (default 60)`;

interface Options {
  readonly cases: readonly KitCase[];
  readonly jobs: number;
  readonly timeoutMs: number;
  readonly command: readonly string[];
}

/** Reads the options before the command. Throws if one is not valid. */
function readOptions(args: readonly string[]): Options {
  const rest = [...args];
  const names: string[] = [];
  let [isCore, jobs, seconds] = [false, 4, 60];
  const numberAfter = (flag: string) => {
    const value = Number(rest.shift());
    if (!Number.isInteger(value) || value < 1) throw new Error(`${flag} needs a whole number above 0`);
    return value;
  };
  while (rest[0]?.startsWith("--")) {
    const flag = rest.shift() ?? "";
    if (flag === "--core") isCore = true;
    else if (flag === "--jobs") jobs = numberAfter(flag);
    else if (flag === "--timeout") seconds = numberAfter(flag);
    else if (flag === "--case") names.push(rest.shift() ?? "");
    else throw new Error(`there is no option ${flag}`);
  }
  const unknown = names.find((name) => !allCases.some((each) => each.name === name));
  if (unknown !== undefined)
    throw new Error(`there is no case "${unknown}"; these are: ${allCases.map(({ name }) => name).join(", ")}`);
  if (rest.length === 0) throw new Error("there is no command that starts a worker");
  const cases = allCases.filter(
    (each) => (names.length === 0 || names.includes(each.name)) && (each.isCore || !isCore),
  );
  return { cases, jobs, timeoutMs: seconds * 1_000, command: rest };
}

/** Runs cases at the same time, `jobs` of them, and prints an outcome for each. Returns false if one failed. */
async function main({ cases, jobs, timeoutMs, command }: Options): Promise<boolean> {
  return await withServices(cases, async (services) => {
    const directory = process.env.INIT_CWD ?? process.cwd();
    const run = { ...services, command: { words: command, directory }, timeoutMs };
    const waiting = [...cases];
    let passed = 0;
    const work = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        const failure = await runCase(run, next);
        if (failure === undefined) passed += 1;
        console.log(failure === undefined ? `ok      ${next.name}` : describeFailure(next, failure));
      }
    };
    await Promise.all(Array.from({ length: jobs }, work));
    console.log(`${passed} passed, ${cases.length - passed} failed`);
    return passed === cases.length;
  });
}

function describeFailure({ name, isCore, rule }: KitCase, { expected, seen }: Unexpected): string {
  const lines = [`expected: ${expected}`, `seen:     ${seen}`, `rule:     ${rule}`];
  return [`FAILED  ${name}${isCore ? " (core)" : ""}`, ...lines].join("\n        ");
}

try {
  process.exitCode = (await main(readOptions(process.argv.slice(2)))) ? 0 : 1;
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${usage}`);
  process.exitCode = 2;
}
