import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inject, onTestFinished } from "vitest";
import { assets } from "../../src/core/assets.ts";

/** The end of a hook. */
export interface HookEnd {
  code: number;
  stdout: string;
  stderr: string;
  /** The JSON on stdout; empty if there is none, as some agents want it. */
  answer: Record<string, unknown>;
}

/** A user of the operating system whose agent has hooks, with a private home. */
export interface HookHome {
  readonly home: string;
  /** A file with a token for the service. */
  readonly tokenFile: string;
  /** Runs the program that `toolgate connect` writes, with an input. */
  run(args: readonly string[], input: string, env?: Record<string, string>): Promise<HookEnd>;
}

/** Creates a home for one test. */
export function createHookHome(token: string): HookHome {
  const home = mkdtempSync(join(tmpdir(), "toolgate-hook-"));
  onTestFinished(() => rmSync(home, { recursive: true, force: true }));
  const tokenFile = join(home, "token");
  writeFileSync(tokenFile, `${token}\n`, { mode: 0o600 });
  return {
    home,
    tokenFile,
    run: (args, input, env) => runHookProgram([hookProgram(), ...args], input, { HOME: home, ...env }),
  };
}

/** Path of the program that `toolgate connect` writes into the settings of agents. */
export function hookProgram(): string {
  const entry = inject("program");
  return entry === undefined ? assets.hookProgram : join(entry, "../../dist/hook.cjs");
}

/** Runs a hook to its end; throws if it prints something else than JSON. */
export function runHookProgram(words: readonly string[], input: string, more = {}): Promise<HookEnd> {
  return new Promise((resolve, reject) => {
    const env = { PATH: process.env.PATH, ...more };
    const child = execFile(process.execPath, words, { env }, (error, stdout, stderr) => {
      try {
        const code = typeof error?.code === "number" ? error.code : 0;
        resolve({ code, stdout, stderr, answer: JSON.parse(stdout || "{}") });
      } catch {
        reject(new Error(`the hook printed something else than JSON:\n${stdout}\n${stderr}`));
      }
    });
    // A hook that refuses before it has read everything closes the pipe.
    child.stdin?.on("error", () => undefined).end(input);
  });
}
