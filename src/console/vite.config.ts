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
    // The page's policy permits pictures from its own address, not inlined ones.
    assetsInlineLimit: 0,
    // One style sheet compresses better than several.
    cssCodeSplit: false,
  },
});

/** Bundles only the part of the contract that the sources of the console name, without its validation rules. */
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

/** Leaves out the JSON codec of messages, a tenth of the page: the console sends and receives binary messages. */
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

/** Leaves out the preloader: the other pages are one file without a separate style sheet, so nothing loads with it. */
function withoutPreload(): Plugin {
  return {
    name: "without-preload",
    enforce: "pre",
    load: (id) => (id === "\0vite/preload-helper.js" ? "export const __vitePreload = (load) => load();" : null),
  };
}
