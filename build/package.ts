/** Builds what `npm pack` puts into the package: one bundle with an entry per export, its assets, its declarations, its licences. */
import { cpSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { build, type Rolldown } from "vite";
import { writeDeclarations } from "./declarations.ts";
import { licencesOf } from "./licences.ts";

const root = resolve(import.meta.dirname, "..");
const dist = join(root, "dist");

/** Entry of the bundle → its source. The names are those of `exports` in package.json and of src/core/assets.ts. */
const entries = {
  main: "src/main.ts",
  index: "src/index.ts",
  client: "src/client/client.ts",
  plugin: "src/tool/plugin.ts",
  testing: "src/testing.ts",
  zod: "zod",
  "html-worker": "src/tools/web/html-worker.ts",
  "supervisor-thread": "src/tools/process/supervisor-thread.ts",
  "analysis-worker": "src/call/analysis-worker.ts",
};

for (const name of readdirSync(dist, { withFileTypes: true }).map(({ name }) => name))
  if (name !== "console") rmSync(join(dist, name), { recursive: true });

const program = await bundle({
  root,
  configFile: false,
  ssr: { noExternal: true, external: ["@vscode/ripgrep"] },
  build: {
    ssr: true,
    outDir: dist,
    emptyOutDir: false,
    target: "node24",
    rolldownOptions: {
      input: Object.fromEntries(
        Object.entries(entries).map(([name, path]) => [name, path.startsWith("src/") ? join(root, path) : path]),
      ),
      preserveEntrySignatures: "strict",
      // All in one folder: src/core/assets.ts looks for its files beside itself.
      output: { entryFileNames: "[name].js", chunkFileNames: "chunk-[name]-[hash].js" },
    },
  },
});
const page = await bundle({ root: join(root, "src/console") });

const { assets } = await import("../src/core/assets.ts");
cpSync(assets.completionScripts, join(dist, "completion"), { recursive: true });
cpSync(assets.redisScripts, join(dist, "redis"), { recursive: true });
cpSync(assets.supervisor, join(dist, "supervisor.sh"));

const typed = writeDeclarations(root, join(dist, "types"), [
  entries.index,
  entries.client,
  entries.plugin,
  entries.testing,
]);
writeFileSync(join(dist, "THIRD_PARTY"), licencesOf([...program, ...page, ...typed]));

/** Runs vite, and returns the modules that it bundled. */
async function bundle(config: Parameters<typeof build>[0]): Promise<string[]> {
  const built = (await build({ logLevel: "warn", ...config })) as Rolldown.RolldownOutput | Rolldown.RolldownOutput[];
  return [built]
    .flat()
    .flatMap(({ output }) => output.flatMap((file) => (file.type === "chunk" ? file.moduleIds : [])));
}
