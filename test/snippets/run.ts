/** Runs the snippets of all pages, from an archive of the commit in an empty directory: npm run test:snippets [-- PAGE ...]. */
import { execFile, execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { needPrograms } from "../programs.ts";
import { blocksNotRun, commandsNotRun, covers, coversCommand, isListed } from "./not-run.ts";
import { type Block, blocksOf, commandsOf } from "./pages.ts";
import { environmentOf } from "./reader.ts";

needPrograms([
  ["bwrap", "bubblewrap"],
  ["curl", "curl"],
  ["git", "git"],
  ["go", "golang-go"],
  ["ip", "iproute2"],
  ["python3", "python3-venv"],
  ["script", "bsdutils"],
  ["unshare", "util-linux"],
]);
const repository = resolve(import.meta.dirname, "../..");
const git = (...args: string[]) => execFileSync("git", args, { cwd: repository, maxBuffer: 2 ** 30 });
const scratch = mkdtempSync(join(tmpdir(), "toolgate-snippets-"));
const machine = join(scratch, "machine");
const checkout = join(machine, "checkout");
const wheels = join(machine, "wheels");
const environment = environmentOf(machine);
/** Pages that run at a time. */
const maxPages = 3;

try {
  for (const name of ["checkout", "home", "installed", "wheels", "go"])
    mkdirSync(join(machine, name), { recursive: true });
  // With changes of files that it has.
  const commit = git("stash", "create").toString().trim() || "HEAD";
  execFileSync("tar", ["-x", "-C", checkout], { input: git("archive", commit) });
  // A reader has a clone.
  execFileSync("git", ["init", "--quiet", checkout]);
  const chosen = process.argv.slice(2);
  const pages = git("ls-files", "*.md", ":!test").toString().trim().split("\n");
  const blocks = pages.flatMap((page) => blocksOf(checkout, page));
  checkExceptions(blocks);
  const running = [...new Set(blocks.filter((block) => !isListed(block)).map(({ page }) => page))]
    .filter((page) => chosen.length === 0 || chosen.includes(page))
    .sort((a, b) => weight(b) - weight(a));

  const began = performance.now();
  const installed = shell("npm ci", checkout).then(() => (performance.now() - began) / 1_000);
  await Promise.all([installed, installPython(), fetchGo()]);
  await installPackage(git("rev-parse", `${commit}^{tree}`).toString().trim());
  console.log(`setup: ${seconds(began)}, npm ci of the README ${(await installed).toFixed(0)} s`);

  const failed: string[] = [];
  async function runPages() {
    for (let page = running.shift(); page !== undefined; page = running.shift()) {
      const start = performance.now();
      const { isPassed, printed } = await runPage(page, await installed);
      console.log(`${isPassed ? "ok" : "FAILED"}  ${page} ${seconds(start)}${printed && `\n${printed}`}`);
      if (!isPassed) failed.push(page);
    }
  }
  await Promise.all(Array.from({ length: maxPages }, runPages));
  console.log(`${failed.length === 0 ? "all pages pass" : `failed: ${failed.join(", ")}`}, ${seconds(began)}`);
  if (failed.length > 0) process.exitCode = 1;
} finally {
  rmSync(scratch, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
}

/** Fails if an exception is of other blocks than it states, of no command, or names a test that does not name the page. */
function checkExceptions(blocks: readonly Block[]): void {
  for (const exception of blocksNotRun) {
    const found = blocks.filter((block) => covers(exception, block)).length;
    if (found !== (exception.count ?? 1))
      throw new Error(
        `the pages have ${found} blocks of this entry of test/snippets/not-run.ts: ${JSON.stringify(exception)}`,
      );
    const name = exception.page?.replace(/^.*\//, "") ?? "";
    if (exception.by !== undefined && !readFileSync(join(repository, exception.by), "utf8").includes(name))
      throw new Error(`${exception.by} does not run ${exception.page}, as test/snippets/not-run.ts states`);
  }
  const commands = blocks
    .filter(({ language }) => language === "sh")
    .flatMap(({ page, text }) => commandsOf(text).map((command) => ({ page, command })));
  for (const exception of commandsNotRun)
    if (!commands.some(({ page, command }) => coversCommand(exception, page, command)))
      throw new Error(`test/snippets/not-run.ts lists a command that no page has: ${exception.begins}`);
}

/** Runs a page with its own port 7420, its own processes, and its own changes of the machine; all three end with it. */
async function runPage(page: string, setupSeconds: number): Promise<{ isPassed: boolean; printed: string }> {
  const upper = join(scratch, "changes");
  mkdirSync(upper, { recursive: true });
  const script = `set -e
ip link set lo up
mount -t tmpfs tmpfs '${upper}'
mkdir '${upper}/new' '${upper}/work'
mount -t overlay overlay -o 'lowerdir=${machine},upperdir=${upper}/new,workdir=${upper}/work' '${machine}'
'${process.execPath}' '${join(import.meta.dirname, "page.ts")}' "$@"
exit $?`;
  const namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
  const args = [...namespaces, "sh", "-c", script, "sh", page, machine, String(setupSeconds)];
  // A page that hangs does not hold the gate.
  const options = { timeout: 240_000, killSignal: "SIGKILL", maxBuffer: 64 * 1_048_576 } as const;
  return await promisify(execFile)("unshare", args, options).then(
    ({ stdout }) => ({ isPassed: true, printed: stdout.trim() }),
    ({ stdout, stderr, killed }) => ({
      isPassed: false,
      printed: `${stdout}${stderr}${killed ? "it did not end" : ""}`.trim(),
    }),
  );
}

/** Installs the package that test:package has packed of the same files, or packs it. */
async function installPackage(tree: string): Promise<void> {
  const known = join(repository, ".cache/packed", `${tree}.tgz`);
  const tarball = join(machine, "toolgate-0.1.0.tgz");
  if (existsSync(known)) copyFileSync(known, tarball);
  else await shell(`npm pack --silent --pack-destination ${machine}`, checkout);
  await shell(`npm install --global --prefix ${machine}/installed ${tarball}`, machine);
}

/** Installs the Python package, and fetches what the pages install. */
async function installPython(): Promise<void> {
  await shell(`python3 -m venv ${machine}/installed/venv`, machine);
  const more = `hatchling editables grpcio-tools mypy-protobuf pytest --requirement ${checkout}/examples/python/requirements.txt`;
  await shell(`python -m pip wheel --quiet --wheel-dir ${wheels} ./sdk/python ${more}`, checkout);
  await shell(`python -m pip install --quiet --no-index --find-links ${wheels} toolgate-client`, checkout);
  await shell(`rm ${wheels}/toolgate_client-*`, checkout);
}

/** Fetches the modules of the Go package and of the example. */
async function fetchGo(): Promise<void> {
  const directory = join(machine, "go");
  writeFileSync(join(directory, "main.go"), 'package main\n\nimport _ "toolgate"\n\nfunc main() {}\n');
  await shell(
    `go mod init example && go mod edit -require toolgate@v0.0.0 -replace toolgate=${checkout}/sdk/go`,
    directory,
  );
  await shell("go mod tidy && go build -o /dev/null .", directory);
  await shell("go mod download", join(checkout, "examples/go"));
}

async function shell(command: string, cwd: string): Promise<void> {
  const options = { cwd, env: environment, maxBuffer: 64 * 1_048_576 };
  await promisify(execFile)("bash", ["-e", "-o", "pipefail", "-c", command], options).catch(({ stdout, stderr }) => {
    throw new Error(`${command} failed:\n${stdout}${stderr}`);
  });
}

/** The pages that take longest start first. */
function weight(page: string): number {
  return ["README.md", "docs/clients/python.md", "docs/operations.md"].includes(page) ? 1 : 0;
}

function seconds(since: number): string {
  return `(${((performance.now() - since) / 1_000).toFixed(0)} s)`;
}
