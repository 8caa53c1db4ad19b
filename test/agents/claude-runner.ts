import { spawn } from "node:child_process";
import { symlink } from "node:fs/promises";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import type { Service } from "../e2e/service.ts";
import { type AgentRun, claudeEnv, createPlace } from "./agents.ts";
import { ownProgram } from "./connectors.ts";
import type { MockModel } from "./mock-models.ts";
import { agentPrograms } from "./programs.ts";

/** Commands of ours as a person runs them whose agent is the real Claude Code, connected to a service. */
export interface ConnectedPerson {
  home: string;
  workspace: string;
  /** Runs `toolgate ARGS` in the workspace to its end. */
  toolgate(args: readonly string[], env?: Readonly<Record<string, string>>): Promise<AgentRun>;
  /** Runs `toolgate claude -- ARGS` against a mock model. */
  claude(model: MockModel, args: readonly string[]): Promise<AgentRun>;
}

/** Creates a home with Claude Code in its PATH, and connects it with `toolgate connect claude`. */
export async function connectPerson(
  { url, workspace }: Service,
  flags: readonly string[] = [],
): Promise<ConnectedPerson> {
  const { home } = await createPlace(workspace);
  await symlink(agentPrograms.claude, join(home, "claude"));
  const environment = { HOME: home, PATH: `${home}:/usr/local/bin:/usr/bin:/bin` };
  const toolgate = (args: readonly string[], env = {}) =>
    runToolgate(args, { cwd: workspace, env: { ...environment, ...env } });
  const approver = { TOOLGATE_URL: url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  const { code, stderr } = await toolgate(["connect", "claude", "--yes", "--no-canary", ...flags], approver);
  if (code !== 0) throw new Error(`connect failed: ${stderr}`);
  return {
    ...{ home, workspace },
    toolgate,
    // Its own rule would let the tool run without the hook.
    claude: (model, args) => toolgate(["claude", "--", ...args, "--allowedTools", "Bash"], claudeEnv(model)),
  };
}

function runToolgate(
  args: readonly string[],
  { cwd, env }: { cwd: string; env: Record<string, string> },
): Promise<AgentRun> {
  const [program = "", ...words] = ownProgram;
  return new Promise((resolve, reject) => {
    const child = spawn(program, [...words, ...args], { cwd, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
    // With the agent that it runs.
    onTestFinished(() => {
      if (child.pid !== undefined && child.exitCode === null && child.signalCode === null)
        process.kill(-child.pid, "SIGKILL");
    });
    const run: AgentRun = { code: null, stdout: "", stderr: "" };
    for (const stream of ["stdout", "stderr"] as const) {
      child[stream].setEncoding("utf8").on("data", (piece: string) => {
        run[stream] += piece;
      });
    }
    child.on("error", reject).on("close", (code) => resolve({ ...run, code }));
  });
}
