import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { neededContract } from "./prune-contract.ts";

export default defineConfig({
  plugins: [prunedContract(), withoutJson(), withoutPreload()],
  build: {
    outDir: "../../dist/console",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // The page may load pictures of its own only from its own address.
    assetsInlineLimit: 0,
    // One style sheet is smaller than its parts.
    cssCodeSplit: false,
  },
});

/** Ships only those rpcs and messages that the sources of the console name: half of the contract, without its validation rules. */
function prunedContract(): Plugin {
  const src = resolve(import.meta.dirname, "..");
  const gen = resolve(src, "../gen");
  let prune: (code: string) => string = (code) => code;
  return {
    name: "pruned-contract",
    enforce: "pre",
    buildStart() {
      ({ prune } = neededContract(gen, [join(src, "console"), join(src, "view")]));
    },
    transform: (code, id) => (id.startsWith(gen) ? prune(code) : null),
  };
}

/** Messages come and go in binary: what would read and write them as JSON, a tenth of the page, is left out. */
function withoutJson(): Plugin {
  return {
    name: "without-json",
    load(id) {
      if (!/@bufbuild\/protobuf\/dist\/esm\/(?:from|to)-json\.js$/.test(id)) return null;
      const names = [...readFileSync(id, "utf8").matchAll(/^export function (\w+)/gm)].map(([, name]) => name);
      return names.map((name) => `export function ${name}() { throw new Error("${name} is left out"); }`).join("\n");
    },
  };
}

/** The other pages are one file without a style sheet of its own: there is nothing to load with it. */
function withoutPreload(): Plugin {
  return {
    name: "without-preload",
    enforce: "pre",
    load: (id) => (id === "\0vite/preload-helper.js" ? "export const __vitePreload = (load) => load();" : null),
  };
}
