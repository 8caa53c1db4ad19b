/**
 * `npm run test:conformance`: runs connectrpc/conformance and h2spec against the edge. Both are Go programs of pinned versions,
 * installed into .cache. No failure of the first is known; the second must not fail where bare node:http2 passes.
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
const problems = [...runConformance(), ...(await runH2spec())];
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

function runConformance(): string[] {
  const server = [process.execPath, join(import.meta.dirname, "server.ts"), descriptors];
  const config = join(import.meta.dirname, "config.yaml");
  const flags = ["--conf", config, "--mode", "server", "--max-servers", "2", "--parallel", "8"];
  const { status } = spawnSync(program("connectconformance"), [...flags, "--", ...server], { stdio: "inherit" });
  return status === 0 ? [] : [`connectconformance ended with ${status}`];
}

/** Returns the tests that the edge fails and bare node:http2 passes. */
async function runH2spec(): Promise<string[]> {
  const [ours, bare] = [await failuresOf("edge"), await failuresOf("node:http2")];
  process.stdout.write(`h2spec: the edge fails ${ours.length} tests, bare node:http2 ${bare.length}\n`);
  return ours.filter((test) => !bare.includes(test)).map((test) => `h2spec fails at the edge only: ${test}`);
}

async function failuresOf(name: string): Promise<string[]> {
  const server = spawn(process.execPath, [join(import.meta.dirname, "h2-server.ts"), name], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  try {
    const port = await portOf(server);
    const report = join(cache, `h2spec-${port}.xml`);
    const flags = ["--port", port, "--path", "/healthz", "--timeout", "5", "--junit-report", report];
    spawnSync(program("h2spec"), flags, { stdio: "ignore" });
    return failedTests(readFileSync(report, "utf8"));
  } finally {
    server.kill();
  }
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
