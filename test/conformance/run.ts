/**
 * `npm run test:conformance`: runs connectrpc/conformance and h2spec against the edge. Both are Go programs of pinned versions,
 * installed into .cache. No failure of the first is known; the second must not fail where bare node:http2 passes. Every program
 * is stopped at its bound.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const conformance = "connectrpc.com/conformance@v1.0.7";
const h2spec = "github.com/summerwind/h2spec@v2.2.1+incompatible";

const root = join(import.meta.dirname, "../..");
const cache = join(root, ".cache/conformance");
const program = (name: string) => join(cache, name);
mkdirSync(cache, { recursive: true });

install(conformance, "cmd/connectconformance");
install(h2spec, "cmd/h2spec");
const descriptors = describeService();
const problems = (await Promise.all([runConformance(), runH2spec()])).flat();
for (const problem of problems) process.stderr.write(`${problem}\n`);
process.exitCode = problems.length === 0 ? 0 : 1;

function install(module: string, command: string): void {
  const [path, version] = module.split("@");
  run("go", ["install", `${path}/${command}@${version}`], { GOBIN: cache });
}

/** Builds the descriptors of ConformanceService from the protos of the suite. */
function describeService(): string {
  const { stdout } = run("go", ["mod", "download", "-json", conformance]);
  const { Dir: directory }: { Dir: string } = JSON.parse(stdout);
  const file = join(cache, "conformance.binpb");
  run(join(root, "node_modules/.bin/buf"), ["build", join(directory, "proto"), "-o", file]);
  return file;
}

/** Runs the suite, and then once more, alone, the cases that failed: the suite gives each a few seconds, also on a busy machine. */
async function runConformance(): Promise<string[]> {
  const server = [process.execPath, join(import.meta.dirname, "server.ts"), descriptors];
  const config = join(import.meta.dirname, "config.yaml");
  const flags = ["--conf", config, "--mode", "server", "--max-servers", "2", "--parallel", "8", "--trace"];
  let ended = "";
  let failed: string[] = [];
  let problems: string[] = [];
  for (let round = 0; round < 2 && ended !== "passed"; round += 1) {
    const begin = performance.now();
    const chosen = failed.flatMap((name) => ["--run", name]);
    const all = [...flags, ...chosen, "--", ...server];
    const { how, output } = await runBounded("connectconformance", all, 300_000);
    ended = how;
    failed = [...output.matchAll(/^FAILED: (.*):$/gm)].map(([, name = ""]) => name);
    const seconds = Math.round((performance.now() - begin) / 1_000);
    process.stdout.write(`connectconformance: ${[ended, ...failed].join("\n  ")}\n  in ${seconds} s\n`);
    problems = ended === "passed" ? [] : [output, `connectconformance ${ended}`];
    if (failed.length > 5) break;
  }
  return problems;
}

/**
 * Returns the tests that the edge fails and bare node:http2 passes. Some depend on whether two frames arrive in one read, so a
 * difference counts only if it is the same in each of three rounds.
 */
async function runH2spec(): Promise<string[]> {
  let different: string[] | undefined;
  for (let round = 0; round < 3; round += 1) {
    const [ours, bare] = await Promise.all([failuresOf("edge"), failuresOf("node:http2")]);
    process.stdout.write(`h2spec: the edge fails ${ours.length} tests, bare node:http2 ${bare.length}\n`);
    const atEdgeOnly = ours.filter((test) => !bare.includes(test));
    different = (different ?? atEdgeOnly).filter((test) => atEdgeOnly.includes(test));
    if (different.length === 0) return [];
  }
  return (different ?? []).map((test) => `h2spec fails at the edge only: ${test}`);
}

async function failuresOf(name: string): Promise<string[]> {
  const server = spawn(process.execPath, [join(import.meta.dirname, "h2-server.ts"), name], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  try {
    const port = await portOf(server);
    const report = join(cache, `h2spec-${name.replace(":", "-")}.xml`);
    const flags = ["--port", port, "--path", "/healthz", "--timeout", "6", "--junit-report", report];
    const { how } = await runBounded("h2spec", flags, 240_000);
    if (how.startsWith("was stopped")) throw new Error(`h2spec ${how} against ${name}`);
    return failedTests(readFileSync(report, "utf8"));
  } finally {
    server.kill();
  }
}

/** Runs a program in its own process group; kills the group at the bound. Returns how it ended, and its output. */
async function runBounded(
  name: string,
  args: readonly string[],
  maxMs: number,
): Promise<{ how: string; output: string }> {
  const child = spawn(program(name), args, { stdio: ["ignore", "pipe", "pipe"], detached: true });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (chunk) => {
      output += chunk;
    });
  let isStopped = false;
  const timer = setTimeout(() => {
    isStopped = true;
    if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
  }, maxMs);
  const [status] = await once(child, "close");
  clearTimeout(timer);
  if (isStopped) return { how: `was stopped after ${maxMs / 1_000} s`, output };
  return { how: status === 0 ? "passed" : `ended with ${status}`, output };
}

async function portOf({ stdout }: ChildProcess): Promise<string> {
  if (stdout === null) throw new Error("the server has no output");
  const [line] = await once(stdout, "data");
  return String(line).trim();
}

/** Returns the failed tests of a JUnit report, by section and name. */
function failedTests(report: string): string[] {
  const tests = [...report.matchAll(/<testcase package="([^"]*)" classname="([^"]*)"[^>]*>([\s\S]*?)<\/testcase>/g)];
  if (tests.length < 100)
    throw new Error(`h2spec reported ${tests.length} tests; see its report in .cache/conformance`);
  return tests
    .filter(([, , , body]) => body !== "" && !body?.includes("<skipped"))
    .map(([, section, name]) => `${section} ${name}`);
}

function run(command: string, args: readonly string[], env: Record<string, string> = {}) {
  const result = spawnSync(command, args, { env: { ...process.env, ...env }, encoding: "utf8", cwd: cache });
  if (result.status === 0) return result;
  throw new Error(`${command} ${args.join(" ")} failed: ${result.stderr ?? result.error}`);
}
