import { execFile } from "node:child_process";
import { join } from "node:path";
import { inject } from "vitest";

/** Path of the product's command: of the package where the run has built one (test/builds.ts), otherwise of the checkout. */
export function programEntry(): string {
  return inject("program") ?? join(import.meta.dirname, "../bin/toolgate.js");
}

/** Runs the product's own command to its end. */
export function main(args: readonly string[], environment: Record<string, string>, entry = programEntry()) {
  const env = { PATH: process.env.PATH, ...environment };
  return new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
    execFile(process.execPath, [entry, ...args], { env }, (error, stdout, stderr) =>
      resolve({ code: typeof error?.code === "number" ? error.code : 0, stdout, stderr }),
    );
  });
}
