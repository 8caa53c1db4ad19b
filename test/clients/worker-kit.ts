import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";

const root = join(import.meta.dirname, "../..");

/** Programs that serve the tools of the conformance kit for workers. */
export const kitWorkers = join(root, "test/worker-kit/workers");

/** Runs the conformance kit, and returns its last line; throws with all that it printed if a case fails. */
export async function runKit(command: readonly string[], options: readonly string[] = []): Promise<string> {
  const args = ["run", "-s", "conformance", "--", ...options, ...command];
  try {
    const { stdout } = await promisify(execFile)("npm", args, { cwd: root, maxBuffer: 16 * 1_048_576 });
    return stdout.trim().split("\n").at(-1) ?? "";
  } catch (error) {
    const { stdout = "", stderr = "" } = error as { stdout?: string; stderr?: string };
    throw new Error(`the worker does not conform:\n${stdout}${stderr}`, { cause: error });
  }
}
