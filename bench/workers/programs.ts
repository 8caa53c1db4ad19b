import { execFileSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { installPythonTools, pythonPackage } from "../../build/python-tools.ts";
import type { Processes } from "../processes.ts";

/** A program that is a worker, by an SDK. */
export interface WorkerProgram {
  readonly label: string;
  /** Its tool, which returns its text. */
  readonly tool: string;
  /** Its command line. */
  command(): readonly [program: string, ...args: string[]];
}

/** Returns the workers in all languages; what has to be built is built into the folder. */
export function workerPrograms(folder: string): readonly WorkerProgram[] {
  const file = (name: string) => join(import.meta.dirname, name);
  return [
    {
      ...{ label: "Go", tool: "echo_go" },
      command() {
        const built = join(folder, "echo-go");
        const cwd = join(import.meta.dirname, "../../sdk/go");
        execFileSync("go", ["build", "-o", built, file("echo.go")], { cwd, stdio: "pipe" });
        return [built];
      },
    },
    {
      ...{ label: "Python", tool: "echo_python" },
      command: () => pythonCommand(folder, file("echo.py")),
    },
    { label: "TypeScript", tool: "echo_typescript", command: () => [process.execPath, file("echo.ts")] },
  ];
}

/** Returns the command line of a Python program; the SDK is installed into the folder, once. */
export function pythonCommand(folder: string, program: string): readonly [string, ...string[]] {
  const tools = installPythonTools();
  const [wheels, installed] = [join(folder, "wheels"), join(folder, "python")];
  const run = (name: string, ...args: string[]) => {
    execFileSync(join(tools, name), args, { cwd: pythonPackage, stdio: "pipe" });
  };
  if (!existsSync(installed)) {
    run("hatchling", "build", "--target", "wheel", "--directory", wheels);
    const wheel = join(wheels, readdirSync(wheels)[0] ?? "");
    run("pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", installed, wheel);
  }
  return ["env", `PYTHONPATH=${installed}`, join(tools, "python"), program];
}

/** Starts a worker of a service, and resolves when it is connected. */
export async function startWorker({ run }: Processes, command: readonly string[], url: string): Promise<void> {
  const variables = [`TOOLGATE_URL=${url}`, `TOOLGATE_TOKEN=${workerToken(0)}`];
  await run("env", [...variables, ...command], /connected/, "");
}

/** Tokens of a service's configuration with which workers bring the tools of this bench. */
export function workerTokens(count = 1): string {
  const token = (_: unknown, index: number) =>
    `[[token]]\nid = "worker-${index}"\nroles = ["worker"]\ntools = ["echo_*", "hold_${index}"]\nvalue = "${workerToken(index)}"\n`;
  return Array.from({ length: count }, token).join("");
}

/** The token of a number. */
export const workerToken = (index: number) => `worker-${index}-token-for-tests`;
