import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";

const root = resolve(import.meta.dirname, "..");

/** The directory of the Python package. */
export const pythonPackage = join(root, "sdk/python");

/** Installs the generators and linters of the Python package, unless they are there, and returns the directory of their programs. */
export function installPythonTools(): string {
  const wanted = join(pythonPackage, "requirements.txt");
  const directory = join(root, ".cache/python-tools");
  const installed = join(directory, "requirements.txt");
  const bin = join(directory, "bin");
  if (existsSync(installed) && readFileSync(installed, "utf8") === readFileSync(wanted, "utf8")) return bin;
  run("python3", "-m", "venv", "--clear", directory);
  run(join(bin, "pip"), "install", "--quiet", "--disable-pip-version-check", "--requirement", wanted);
  // Last, so that an installation that broke off is repeated.
  copyFileSync(wanted, installed);
  return bin;
}

/** Builds the wheel and the source distribution of the Python package; their files have the date `epoch`. */
export function buildPythonPackages(to: string, epoch: number): void {
  execFileSync(join(installPythonTools(), "hatchling"), ["build", "--directory", to], {
    cwd: pythonPackage,
    env: { ...process.env, SOURCE_DATE_EPOCH: String(epoch) },
    stdio: ["ignore", "ignore", "inherit"],
  });
}

function run(program: string, ...args: string[]): void {
  execFileSync(program, args, { stdio: ["ignore", "ignore", "inherit"] });
}
