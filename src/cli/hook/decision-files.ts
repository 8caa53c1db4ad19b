import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { readDecision, writeDecision } from "../../agents/hooks/decision-json.ts";
import type { DecisionMemory } from "../../agents/hooks/delegate.ts";
import { hmacSha256Hex, sha256Hex } from "../../core/sha256.ts";

/** Returns the directory in which the hooks of one user remember decisions between their processes. */
export function decisionDirectory(env: NodeJS.ProcessEnv): string {
  return join(env.HOME || homedir(), ".local", "state", "toolgate", "decisions");
}

/**
 * Creates a memory in files that only this user may read; when they are many, those older than a day are removed. Each file begins
 * with a MAC under the connector's token: the environment may name another directory, but a file there is not taken for a decision.
 */
export function createDecisionFiles(directory: string, token: string): DecisionMemory {
  const fileOf = (key: string) => join(directory, sha256Hex(key));
  const macOf = (key: string, text: string) => hmacSha256Hex(token, JSON.stringify([key, text]));
  return {
    async put(key, decision) {
      makeDirectory(directory);
      removeOld(directory);
      const file = fileOf(key);
      const next = `${file}.${process.pid}.new`;
      const text = writeDecision(decision);
      writeFileSync(next, `${macOf(key, text)}\n${text}`, { mode: 0o600 });
      renameSync(next, file);
    },
    async get(key) {
      const file = fileOf(key);
      try {
        const { mtimeMs } = statSync(file);
        const [mac, text = ""] = readFileSync(file, "utf8").split("\n", 2);
        if (mac !== macOf(key, text)) return undefined;
        const decision = readDecision(JSON.parse(text));
        return decision && { decision, ageMs: Date.now() - mtimeMs };
      } catch {
        // Without a decision the use is asked again, or its result is not reported.
        return undefined;
      }
    },
    async remove(key) {
      rmSync(fileOf(key), { force: true });
    },
  };
}

/** Creates a directory and those above it. `recursive` of Node never ends below `/proc`, where it can create none. */
function makeDirectory(directory: string): void {
  if (existsSync(directory)) return;
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : "";
    // Another hook can make it at the same time.
    if (code === "EEXIST") return;
    if (code !== "ENOENT" || dirname(directory) === directory) throw error;
    makeDirectory(dirname(directory));
    mkdirSync(directory, { mode: 0o700 });
  }
}

function removeOld(directory: string): void {
  const names = readdirSync(directory);
  if (names.length < maxFiles) return;
  for (const name of names) {
    const file = join(directory, name);
    const found = statSync(file, { throwIfNoEntry: false });
    if (found !== undefined && Date.now() - found.mtimeMs > maxAgeMs) rmSync(file, { force: true });
  }
}

const maxAgeMs = 86_400_000;
/** Number of files below which the old ones are left: a reported use removes its own. */
const maxFiles = 256;
