import { spawn } from "node:child_process";
import { mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { onTestFinished } from "vitest";
import type { MockModel } from "./mock-models.ts";
import { agentPrograms } from "./programs.ts";

/** A home and a workspace for one test; nothing of the machine's own configuration reaches the agent. */
export interface AgentPlace {
  readonly home: string;
  readonly workspace: string;
}

/** The end of an agent's process. */
export interface AgentRun {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** Creates the directories; `workspace` is a directory that exists already. */
export async function createPlace(workspace?: string): Promise<AgentPlace> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), "toolgate-agent-")));
  onTestFinished(() => rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 }));
  const place = { home: join(folder, "home"), workspace: workspace ?? join(folder, "workspace") };
  await mkdir(place.home);
  await mkdir(place.workspace, { recursive: true });
  return place;
}

/** Runs `claude -p` to its end. */
export function runClaude(place: AgentPlace, model: MockModel, args: readonly string[], env = {}): Promise<AgentRun> {
  return runAgent("claude", ["-p", "go", "--output-format", "json", ...args], place, { ...claudeEnv(model), ...env });
}

/** The environment with which Claude Code talks to the mock model only. */
export function claudeEnv({ url }: MockModel): Record<string, string> {
  return {
    ANTHROPIC_BASE_URL: url,
    ANTHROPIC_API_KEY: "none",
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    DISABLE_AUTOUPDATER: "1",
    // Lets it run as root.
    IS_SANDBOX: "1",
  };
}

/** The environment with which opencode looks for nothing on the network. */
export const opencodeEnv = { OPENCODE_DISABLE_MODELS_FETCH: "1", npm_config_offline: "true" };

/** Runs `opencode run` to its end; `settings` are added to its configuration. */
export async function runOpencode(place: AgentPlace, model: MockModel, settings = {}, env = {}): Promise<AgentRun> {
  await configureOpencode(place, model, settings);
  return runAgent("opencode", ["run", "--format", "json", "go"], place, { ...opencodeEnv, ...env });
}

/** Writes the configuration with which opencode talks to the mock model only; `settings` are added to it. */
export async function configureOpencode(place: Pick<AgentPlace, "home">, { url }: MockModel, settings = {}) {
  const directory = join(place.home, ".config/opencode");
  await mkdir(directory, { recursive: true });
  const models = { m: { name: "m", tool_call: true } };
  const options = { baseURL: `${url}/v1`, apiKey: "none" };
  const provider = { mock: { npm: "@ai-sdk/openai-compatible", name: "mock", options, models } };
  const config = {
    model: "mock/m",
    small_model: "mock/m",
    autoupdate: false,
    share: "disabled",
    provider,
    ...settings,
  };
  await writeFile(join(directory, "opencode.json"), JSON.stringify(config));
}

/** Runs `codex exec` to its end. */
export function runCodex(place: AgentPlace, model: MockModel): Promise<AgentRun> {
  return runAgent("codex", codexWords(model), place, {});
}

/** Arguments with which Codex runs once, without its sandbox and its own approvals. */
export function codexWords({ url }: MockModel): string[] {
  const provider = `{name="mock",base_url="${url}/v1",wire_api="responses"}`;
  const model = ["-c", `model_providers.mock=${provider}`, "-c", 'model="m"', "-c", 'model_provider="mock"'];
  return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ...model, "go"];
}

/** Runs `gemini -p` to its end, without its own approvals. */
export function runGemini(place: AgentPlace, { url }: MockModel): Promise<AgentRun> {
  return runAgent("gemini", ["-m", "gemini-2.5-flash", "-p", "go", "--yolo"], place, {
    GOOGLE_GEMINI_BASE_URL: url,
    GEMINI_API_KEY: "none",
    GEMINI_DEFAULT_AUTH_TYPE: "gemini-api-key",
    GEMINI_CLI_TRUST_WORKSPACE: "true",
  });
}

/** Runs `copilot -p` to its end. */
export function runCopilot(place: AgentPlace, { url }: MockModel, args: readonly string[] = []): Promise<AgentRun> {
  return runAgent("copilot", ["-p", "go", ...args], place, {
    COPILOT_OFFLINE: "true",
    COPILOT_PROVIDER_BASE_URL: `${url}/v1`,
    COPILOT_MODEL: "m",
    COPILOT_AUTO_UPDATE: "false",
  });
}

function runAgent(
  agent: keyof typeof agentPrograms,
  args: readonly string[],
  { home, workspace }: AgentPlace,
  env: Record<string, string>,
): Promise<AgentRun> {
  return new Promise((resolve, reject) => {
    const child = spawn(agentPrograms[agent], args, {
      cwd: workspace,
      env: { HOME: home, PATH: `${dirname(process.execPath)}:/usr/local/bin:/usr/bin:/bin`, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    onTestFinished(() => void child.kill("SIGKILL"));
    const run: AgentRun = { code: null, stdout: "", stderr: "" };
    for (const stream of ["stdout", "stderr"] as const) {
      child[stream].setEncoding("utf8").on("data", (piece: string) => {
        run[stream] += piece;
      });
    }
    child.on("error", reject).on("close", (code) => resolve({ ...run, code }));
  });
}
