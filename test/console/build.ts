import { spawnSync } from "node:child_process";
import { readdirSync, statSync } from "node:fs";
import { join, resolve } from "node:path";

const root = resolve(import.meta.dirname, "../..");

/** Before all tests: builds the console if a source is newer than the last build. */
export default function build(): void {
  const built = statSync(join(root, "dist/console/index.html"), { throwIfNoEntry: false })?.mtimeMs ?? 0;
  const sources = ["src/console", "src/view", "gen", "package-lock.json"];
  if (sources.every((path) => newest(join(root, path)) < built)) return;
  const { status } = spawnSync(process.execPath, ["node_modules/vite/bin/vite.js", "build", "src/console"], {
    cwd: root,
    stdio: ["ignore", "ignore", "inherit"],
    // The mode of the tests would make a development build.
    env: { ...process.env, NODE_ENV: "production" },
  });
  if (status !== 0) throw new Error("the console cannot be built; npm run build says more");
}

function newest(path: string): number {
  const found = statSync(path);
  if (!found.isDirectory()) return found.mtimeMs;
  return Math.max(
    ...readdirSync(path, { recursive: true, encoding: "utf8" }).map((name) => statSync(join(path, name)).mtimeMs),
  );
}
