import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dirname, "../..");
const lock = "package-lock.json";
const wanted = join(import.meta.dirname, "programs");
const installed = join(root, ".cache/agents");

/** The agents, as their packages contain them. */
export const agentPrograms = {
  claude: join(installed, "node_modules/@anthropic-ai/claude-agent-sdk-linux-x64/claude"),
  codex: join(installed, "node_modules/.bin/codex"),
  copilot: join(installed, "node_modules/@github/copilot-linux-x64/copilot"),
  gemini: join(installed, "node_modules/.bin/gemini"),
  opencode: join(installed, "node_modules/opencode-linux-x64/bin/opencode"),
} as const;

/** Installs the agents of the lock file into .cache, without running scripts of packages, before all tests. */
export default function setup(): void {
  if (isCurrent()) return;
  mkdirSync(installed, { recursive: true });
  for (const file of ["package.json", lock]) cpSync(join(wanted, file), join(installed, file));
  const line = `npm ci --ignore-scripts --no-audit --no-fund --prefix ${installed}`;
  console.log(`the tests need five agents, about 1.2 GB: ${line}`);
  const { status } = spawnSync("sh", ["-c", line], { stdio: ["ignore", "inherit", "inherit"] });
  if (status === 0 && isCurrent()) return;
  throw new Error(`The agents are not installed. Install them, then run the tests again: ${line}`);
}

/** Checks that what is installed is what the lock file names. */
function isCurrent(): boolean {
  if (!Object.values(agentPrograms).every((program) => existsSync(program))) return false;
  return readFileSync(join(wanted, lock), "utf8") === readFileSync(join(installed, lock), "utf8");
}
