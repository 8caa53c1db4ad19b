import { cpSync } from "node:fs";
import http from "node:http";
import { join, resolve } from "node:path";
import { build, type Plugin, type Rolldown } from "vite";
import { assets } from "../src/core/assets.ts";

const root = resolve(import.meta.dirname, "..");

/** Entry of the bundle → its source. The names are those of `exports` in package.json and of src/core/assets.ts. */
export const entries = {
  main: "src/main.ts",
  index: "src/index.ts",
  ai: "src/ai-sdk/toolgate-tools.ts",
  client: "src/client/client.ts",
  plugin: "src/tool/plugin.ts",
  worker: "src/bodies/sdk/worker.ts",
  testing: "src/testing.ts",
  validators: "src/view/json-form/schemas.ts",
  zod: "zod",
  "html-worker": "src/tools/web/html-worker.ts",
  "proxy-process": "src/sandbox/network/proxy-process.ts",
  "tool-process": "src/bodies/program/main.ts",
  "spawn-process": "src/tools/process/spawn-process.ts",
  "supervisor-thread": "src/tools/process/supervisor-thread.ts",
  "analysis-worker": "src/call/analysis-worker.ts",
  "plan-thread": "src/sandbox/plan-thread.ts",
  "simulate-thread": "src/compose/simulate-thread.ts",
};

/** The program that agents start for each use of a tool: one file of CommonJS, which starts sooner than modules. */
export const hookEntry = "src/cli/hook/hook-program.ts";

/** Packages that the user of an entry installs: code and declarations import them by name. */
export const peers = ["ai"];

/** Bundles the program into a directory, with the files that it reads at run time; the console is built separately. Returns its modules. */
export async function buildProgram(outDir: string): Promise<string[]> {
  const ssr = { noExternal: true as const, external: ["@vscode/ripgrep", ...peers] };
  const hook = await bundle({
    ...{ root, configFile: false, ssr },
    build: {
      ...{ ssr: join(root, hookEntry), outDir, emptyOutDir: false, target: "node24", minify: true },
      rolldownOptions: {
        output: { format: "cjs", entryFileNames: "hook.cjs", chunkFileNames: "hook-[name]-[hash].cjs" },
      },
    },
  });
  const modules = await bundle({
    root,
    configFile: false,
    ssr,
    plugins: [lightHttp],
    build: {
      ssr: true,
      outDir,
      emptyOutDir: false,
      target: "node24",
      rolldownOptions: {
        input: Object.fromEntries(
          Object.entries(entries).map(([name, path]) => [name, path.startsWith("src/") ? join(root, path) : path]),
        ),
        preserveEntrySignatures: "strict",
        output: {
          // All in one folder: src/core/assets.ts looks for its files beside itself.
          ...{ entryFileNames: "[name].js", chunkFileNames: "chunk-[name]-[hash].js" },
          // V8 keeps the text of each module, with two bytes for each character if one is not ASCII. Licenses are in THIRD_PARTY.
          ...{ charset: "ascii", comments: false },
        },
      },
    },
  });
  cpSync(assets.completionScripts, join(outDir, "completion"), { recursive: true });
  cpSync(join(root, "gen/jsonschema"), join(outDir, "jsonschema"), { recursive: true });
  cpSync(assets.redisScripts, join(outDir, "redis"), { recursive: true });
  cpSync(assets.supervisor, join(outDir, "supervisor.sh"));
  return [...hook, ...modules];
}

/**
 * Takes `node:http` without importing it: an import reads all exports of the module, and that of `WebSocket` loads Node's whole fetch,
 * which costs each process 13 MiB and 33 ms.
 */
const lightHttp: Plugin = {
  name: "light-http",
  enforce: "pre",
  resolveId: (id) => (id === "http" || id === "node:http" ? "\0light-http" : null),
  load(id) {
    if (id !== "\0light-http") return null;
    const names = Object.keys(http).filter((name) => !["WebSocket", "CloseEvent", "MessageEvent"].includes(name));
    return `const http = process.getBuiltinModule("node:http");
      export default http;
      export const { ${names.join(", ")} } = http;`;
  },
};

/** Runs vite, and returns the modules that it bundled. */
export async function bundle(config: Parameters<typeof build>[0]): Promise<string[]> {
  const built = (await build({ logLevel: "warn", ...config })) as Rolldown.RolldownOutput | Rolldown.RolldownOutput[];
  return [built]
    .flat()
    .flatMap(({ output }) => output.flatMap((file) => (file.type === "chunk" ? file.moduleIds : [])));
}

if (import.meta.main) await buildProgram(resolve(process.argv[2] ?? join(root, "dist")));
