import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { neededContract } from "./prune-contract.ts";

export default defineConfig({
  plugins: [prunedContract(), withoutJson(), withoutUnused(), withoutOptions(), withoutPreload()],
  build: {
    outDir: "../../dist/console",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // The page's policy permits pictures from its own address, not inlined ones.
    assetsInlineLimit: 0,
    // One style sheet compresses better than several.
    cssCodeSplit: false,
    // So do the libraries and the messages that every page needs; one page draws QR codes.
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: "base", test: /node_modules\/(?!uqr)|(?:permission|tool)_pb\.ts|quantities\.ts|long-text\.tsx/ },
          ],
        },
      },
    },
  },
});

/** Bundles only the part of the contract that the sources of the console name, without its validation rules. */
function prunedContract(): Plugin {
  const [src, gen] = ["src", "gen"].map((name) => resolve(import.meta.dirname, "..", name)) as [string, string];
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

/** Leaves out code of protobuf that never runs here: integers without BigInt, which every ES2022 has, and defaults of bytes in proto2. */
function withoutUnused(): Plugin {
  const cuts: readonly [file: RegExp, code: RegExp, by: string][] = [
    [/@bufbuild\/protobuf\/dist\/esm\/proto-int64\.js$/, /(?<=const ok = )[^;]+/, "true"],
    [/@bufbuild\/protobuf\/dist\/esm\/wire\/text-format\.js$/, /unescapeBytesDefaultValue\(value\)/, "false"],
  ];
  return {
    name: "without-unused",
    transform(code, id) {
      const [, cut, by = ""] = cuts.find(([file]) => file.test(id)) ?? [];
      if (cut === undefined) return null;
      if (!cut.test(code)) throw new Error(`${id} has no ${cut}: adapt build/console.ts`);
      return code.replace(cut, by);
    },
  };
}

/** A message in the description of descriptors. */
interface DescribedMessage {
  name: string;
  field?: unknown[];
  nestedType?: DescribedMessage[];
}

/** Leaves out the fields of most options and of source information in the description of descriptors: those of the contract have none. */
function withoutOptions(): Plugin {
  const isUnused =
    /^(?:FileDescriptorSet|(?:File|Service|Enum|EnumValue|Oneof|ExtensionRange)Options|UninterpretedOption|FeatureSet.*|.*CodeInfo)$/;
  const withoutFields = ({ name, nestedType = [] }: DescribedMessage): DescribedMessage => ({
    name,
    nestedType: nestedType.map(withoutFields),
  });
  return {
    name: "without-options",
    transform(code, id) {
      if (!/@bufbuild\/protobuf\/dist\/esm\/wkt\/.*\/descriptor_pb\.js$/.test(id)) return null;
      return code.replace(/(?<=boot\()\{.*\}(?=\);$)/m, (json) => {
        const file: { messageType: DescribedMessage[] } = JSON.parse(json);
        const messageType = file.messageType.map((message) =>
          isUnused.test(message.name) ? { ...message, ...withoutFields(message), field: [] } : message,
        );
        return JSON.stringify({ ...file, messageType });
      });
    },
  };
}

/** Leaves out the preloader: the style sheet is one, and the browser loads the scripts that a page shares with others. */
function withoutPreload(): Plugin {
  return {
    name: "without-preload",
    enforce: "pre",
    load: (id) => (id === "\0vite/preload-helper.js" ? "export const __vitePreload = (load) => load();" : null),
  };
}
