import { createHash } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isBroad } from "../../breadth.ts";
import { outputOf, type Runtime, type StartedProcess, startProcess } from "./driver.ts";

const simple = (returned: string) => `
  import { tool } from "@opencode-ai/plugin";
  export default tool({ description: "", args: {}, execute: async () => String(${returned}) });`;

const files = {
  "package.json": `{ "type": "module" }`,
  ".opencode/tsconfig.json": `{
    // paths without baseUrl
    "extends": "./base.json",
    "compilerOptions": { "paths": { "@/*": ["../src/*"], "#one": ["./lib/one.ts"] }, },
  }`,
  ".opencode/base.json": `{ "compilerOptions": { "strict": true } }`,
  "src/core/deep/name.ts": `export const name = "aliased";`,
  ".opencode/lib/one.ts": `export { two } from "./two"; export type { Shape } from "./types"; export * as dir from "./dir";`,
  ".opencode/lib/two.ts": `import { Shape } from "./types.js"; export const two: Shape = { n: 2 };`,
  ".opencode/lib/types.ts": `export interface Shape { n: number } export class Used {}`,
  ".opencode/lib/dir/index.ts": `export const inDirectory = true;`,
  ".opencode/lib/prompt.txt": "line 1\nline 2",
  ".opencode/lib/doc.md": "# Title",
  ".opencode/lib/data.json": `{ "a-b": 1, "plain": "p" }`,
  // Modules of both kinds that other packages bring.
  ".opencode/node_modules/old/package.json": `{ "name": "old" }`,
  ".opencode/node_modules/old/index.js": `exports.__esModule = true; exports.first = 1; exports.second = require("./circle").second; exports.default = "d";`,
  ".opencode/node_modules/old/circle.js": `const { first } = require("./index"); exports.second = first + 1; exports.os = typeof require("node:os").cpus;`,
  ".opencode/node_modules/new/package.json": `{ "name": "new", "type": "module", "exports": "./index.js" }`,
  ".opencode/node_modules/new/index.js": `await 0; export * from "./part.js"; export {};`,
  ".opencode/node_modules/new/part.js": `export const part = "p";`,
  ".opencode/lib/classic.cjs": `module.exports = { classic: require("./data.json").plain };`,
  // A package that ships TypeScript, with imports without extension, and one of the old kind.
  ".opencode/node_modules/ships-ts/package.json": `{ "name": "ships-ts", "main": "src/index.ts" }`,
  ".opencode/node_modules/ships-ts/src/index.ts": `import { part } from "./part"; export enum Level { Low = 3 } export const shipped: number = part;`,
  ".opencode/node_modules/ships-ts/src/part.ts": `export const part: number = 7;`,
  ".opencode/node_modules/@acme/types/package.json": `{ "name": "@acme/types", "exports": { ".": "./index.js" } }`,
  ".opencode/node_modules/@acme/types/index.d.ts": `export declare const x: number;`,
  ".opencode/tool/language.ts": `
    import { tool, Plugin, type ToolContext } from "@opencode-ai/plugin";
    enum Color { Red = "r", Blue = "b" }
    const enum Fast { Yes = 1 }
    class Point { constructor(private readonly x: number, public y = 2) {} get sum() { return this.x + this.y; } }
    abstract class Base<T> { declare tag: T; protected abstract make(): T; }
    function over(a: string): string; function over(a: unknown) { return String(a); }
    const value = <T,>(x: T) => x satisfies unknown as T;
    const keys: Plugin | undefined = undefined;
    export default tool({ description: "", args: {}, async execute(_: {}, ctx: ToolContext) {
      using done = { [Symbol.dispose]() {} };
      return [Color.Red, Fast.Yes, new Point(1).sum, over(5), value(6)!, keys].join();
    } });`,
  ".opencode/tool/imports.ts": `
    import "@opencode-ai/plugin/dist/index.d.ts";
    import "@acme/types/index.d.ts";
    import "../lib/none.d.ts";
    import { tool } from "@opencode-ai/plugin/tool";
    import { name } from "@/core/deep/name";
    import { two, dir } from "#one";
    import text from "../lib/prompt.txt";
    import same from "../lib/prompt.txt" with { type: "text" };
    import doc from "../lib/doc.md";
    import data, { plain } from "../lib/data.json";
    import attributed from "../lib/data.json" with { type: "json" };
    import { shipped, Level } from "ships-ts";
    import classic from "../lib/classic.cjs";
    import { first, second } from "old";
    import { part } from "new";
    import { z } from "zod";
    export default tool({ description: "", args: { n: z.number().optional() }, execute: async () => JSON.stringify(
      { name, two, dir: dir.inDirectory, text: text === same, doc, data: data["a-b"], plain, attributed: attributed.plain, shipped, Level: Level.Low, ...classic, first, second, part },
    ) });`,
  ".opencode/tool/missing.ts": `import { tool } from "@opencode-ai/plugin";\n\nimport { faker } from "@faker-js/faker/locale/de";\nexport default faker;`,
  ".opencode/tool/nofile.ts": `import "./gone";`,
  ".opencode/tool/syntax.ts": `const a = 1;\nconst b: = 2;`,
  ".opencode/tool/plain.js": `import "../lib/broken.js";`,
  ".opencode/lib/broken.js": `const a = 1;\nexport const b = ;`,
  ".opencode/tool/throws.ts": `interface A {}\n\nenum B { C }\nthrow new Error("at line 4");`,
  ".opencode/tool/helper.ts": `export const help = 1;`,
  ".opencode/tool/utils.ts": `export const shared = () => "shared";`,
  ".opencode/tool/uses.ts": `import { shared } from "./utils.js";\n${simple("shared()")}`,
  ".opencode/tool/hangs.ts": simple("await new Promise(() => {})").replace(
    "export",
    "await new Promise(() => {}); export",
  ),
};
const loaded = Object.keys(files).filter((path) => path.startsWith(".opencode/tool/") && !path.includes("hangs"));

const hashOf = (text: string) => createHash("sha256").update(text).digest("hex");
const hashesOf = (all: Record<string, string>) =>
  Object.fromEntries(Object.entries(all).map(([path, text]) => [path, hashOf(text)]));
const pair = {
  "tool/a.ts": simple("n").replace("import", 'import { n } from "../n.ts"; import'),
  "n.ts": "export const n = 1; console.log('evaluated');",
};

/** Tests of what a runtime loads and how it reports what it cannot. */
export function describeLoading(runtime: Runtime): void {
  describe.each([
    ["any content", {}],
    ["content as it was trusted", hashesOf(files)],
  ])("of %s", (_name, expected) => {
    let started: StartedProcess;
    beforeAll(async () => {
      started = await startProcess({ files, load: loaded, runtime, expected });
    });
    afterAll(() => started[Symbol.asyncDispose]());
    const problemOf = (name: string) => {
      const path = `${started.directory}/.opencode/tool/${name}.ts`;
      const found = started.hello.problems.find(({ file }) => file === path);
      return found && { path: found.path === path ? name : found.path, line: found.line, reason: found.reason };
    };

    test("enums, parameter properties and imports of types are compiled", async () => {
      expect(problemOf("language")).toBeUndefined();
      expect(outputOf(await started.call("language", {}))).toBe("r,1,3,5,6,");
    });

    test("paths, texts, JSON, types, files without extension and packages of TypeScript are imported", async () => {
      expect(problemOf("imports")).toBeUndefined();
      expect(JSON.parse(outputOf(await started.call("imports", {})))).toEqual({
        ...{
          name: "aliased",
          two: { n: 2 },
          dir: true,
          text: true,
          doc: "# Title",
          data: 1,
          plain: "p",
          attributed: "p",
        },
        ...{ shipped: 7, Level: 3, classic: "p", first: 1, second: 2, part: "p" },
      });
    });

    test("a package that is missing is named with the line that installs it", () => {
      const install = `npm install --prefix ${started.directory}/.opencode @faker-js/faker`;
      const reason = `it needs the package @faker-js/faker: ${install}`;
      expect(problemOf("missing")).toEqual({ path: "missing", line: 3, reason });
    });

    test("other problems name file, line and reason", () => {
      expect(problemOf("nofile")).toMatchObject({ path: "nofile", line: 1, reason: "there is no file ./gone" });
      expect(problemOf("syntax")).toMatchObject({ path: "syntax", line: 2 });
      expect(started.hello.problems).toContainEqual(
        expect.objectContaining({ path: expect.stringMatching(/lib\/broken\.js$/), line: 2 }),
      );
      // Bun knows no lines of code that a hook hands over.
      const line = runtime.name === "bun" && "package.json" in expected ? 0 : 4;
      expect(problemOf("throws")).toEqual({ path: "throws", line, reason: "at line 4" });
      expect(problemOf("helper")?.reason).toContain("it exports no tool");
      expect(problemOf("utils")).toBeUndefined();
    });

    test("the files that were loaded are listed with their digests, without those of packages", () => {
      const paths = new Map(
        started.hello.files.map(({ path, sha256 }) => [path.slice(started.directory.length + 1), sha256]),
      );
      expect(paths.get(".opencode/lib/prompt.txt")).toBe(
        createHash("sha256").update(files[".opencode/lib/prompt.txt"]).digest("hex"),
      );
      expect([...paths.keys()]).toEqual(
        expect.arrayContaining([
          "src/core/deep/name.ts",
          ".opencode/lib/two.ts",
          ".opencode/lib/classic.cjs",
          ".opencode/lib/data.json",
        ]),
      );
      expect([...paths.keys()].filter((path) => path.includes("node_modules"))).toEqual([]);
    });
  });

  test("code that differs from what was trusted is not evaluated", async () => {
    const expected = { "tool/a.ts": hashOf(pair["tool/a.ts"]), "n.ts": hashOf("something else") };
    await using changed = await startProcess({ runtime, files: pair, load: ["tool/a.ts"], expected });
    expect(changed.hello.problems).toMatchObject([
      { reason: expect.stringContaining("n.ts has changed since it was trusted") },
    ]);
    expect(changed.hello.tools).toEqual([]);
    expect(changed.stderr()).not.toContain("evaluated");
    await using same = await startProcess({
      runtime,
      files: pair,
      load: ["tool/a.ts"],
      expected: { "n.ts": hashOf(pair["n.ts"]) },
    });
    expect(same.hello.problems).toEqual([]);
    expect(same.hello.tools.map(({ name }) => name)).toEqual(["a"]);
  });

  test("a tool's digest covers what its file imports, and nothing else", async () => {
    const sourcesWith = async (changes: Record<string, string>) => {
      const all = { ...pair, "tool/b.ts": simple("2"), ...changes };
      await using started = await startProcess({ runtime, files: all, load: ["tool/a.ts", "tool/b.ts"] });
      return Object.fromEntries(started.hello.tools.map(({ name, source }) => [name, source]));
    };
    const before = await sourcesWith({});
    const after = await sourcesWith({ "n.ts": "export const n = 2;" });
    expect(after.a).not.toBe(before.a);
    expect(after.b).toBe(before.b);
  });

  test.runIf(isBroad)("a module that does not finish loading is a problem of its file alone", async () => {
    await using started = await startProcess({
      runtime,
      files,
      load: [".opencode/tool/hangs.ts", ".opencode/tool/language.ts"],
    });
    expect(started.hello.tools.map(({ name }) => name)).toEqual(["language"]);
    expect(started.hello.problems).toMatchObject([{ reason: "it was not ready within 10 s" }]);
  });
}
