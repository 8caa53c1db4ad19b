import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chownSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { onTestFinished } from "vitest";
import type { AgentConfinement } from "../../src/sandbox/confinement.ts";

/** A program to run in a sandbox. */
export interface ConfinedRun {
  argv: readonly [string, ...string[]];
  settings: AgentConfinement;
  workspace: string;
  /** Beginning of the addresses that it reaches, if its network is the proxy. */
  allowed: string;
}

/** The end of a program. */
export interface EndedRun {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Its stdout. */
  printed: string;
  errors: string;
}

const nobody = { uid: 65_534, gid: 65_534 };

/** Runs a program in a new sandbox, in an empty workspace that exists during the test; `asUser` needs root. */
export async function runConfined(
  argv: readonly [string, ...string[]],
  {
    asUser = false,
    allowed = "",
    ...settings
  }: Partial<AgentConfinement> & { asUser?: boolean; allowed?: string } = {},
): Promise<EndedRun> {
  const workspace = mkdtempSync(join(tmpdir(), "toolgate-test-"));
  onTestFinished(() => rmSync(workspace, { recursive: true }));
  const wanted = { profile: "workspace-write", network: "none", ...settings } as const;
  const run: ConfinedRun = { argv, settings: wanted, workspace, allowed };
  if (asUser) chownSync(workspace, nobody.uid, nobody.gid);
  const child = spawn(process.execPath, [script], { stdio: "pipe", timeout: 60_000, ...(asUser && nobody) });
  child.stdin.end(JSON.stringify(run));
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "close")]);
  if (code !== 0) throw new Error(`the sandbox did not run: ${stderr}`);
  return JSON.parse(stdout);
}

const script = join(import.meta.dirname, "run-confined.ts");

/** Runs a program without a sandbox, as the control of a test. */
export function runPlainly([program, ...args]: readonly [string, ...string[]]): string {
  const { stdout, stderr, status } = spawnSync(program, args, { encoding: "utf8" });
  if (status !== 0) throw new Error(`the control failed with status ${status}: ${stderr}`);
  return stdout;
}
