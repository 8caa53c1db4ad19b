import { execFile } from "node:child_process";
import { join } from "node:path";

/** Runs the product's own entry to its end. */
export function main(args: readonly string[], env: Record<string, string>) {
  const entry = join(import.meta.dirname, "../src/main.ts");
  return new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
    execFile(process.execPath, [entry, ...args], { env: { PATH: process.env.PATH, ...env } }, (error, stdout, stderr) =>
      resolve({ code: typeof error?.code === "number" ? error.code : 0, stdout, stderr }),
    );
  });
}
