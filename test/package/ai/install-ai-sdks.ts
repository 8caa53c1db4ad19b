import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const cache = join(import.meta.dirname, "../../../.cache/ai");
/** The folder with the older version, as `ai-6`; the newer one is a dependency of the checkout. */
export const aiSdks = join(cache, "node_modules");

/** Installs the older version of the AI SDK of the lock file into .cache, once. */
export function installAiSdks(): void {
  const files = ["package.json", "package-lock.json"];
  const read = (folder: string) =>
    files.map((file) => (existsSync(join(folder, file)) ? readFileSync(join(folder, file), "utf8") : ""));
  if (read(cache).join() === read(import.meta.dirname).join() && existsSync(join(cache, "node_modules"))) return;
  mkdirSync(cache, { recursive: true });
  for (const file of files) cpSync(join(import.meta.dirname, file), join(cache, file));
  const line = `npm ci --ignore-scripts --no-audit --no-fund --prefix ${cache}`;
  if (spawnSync("sh", ["-c", line], { stdio: ["ignore", "ignore", "inherit"] }).status !== 0)
    throw new Error(`the AI SDK is not installed. Install it, then run the tests again: ${line}`);
}
