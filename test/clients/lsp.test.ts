/** Code intelligence with real servers on real projects: TypeScript 7 on this repository, pyright on a package of Python. */
import { execFileSync } from "node:child_process";
import { cp, glob, readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { connect } from "../e2e/clients.ts";
import { createService } from "../e2e/service.ts";
import { installServers, serverPrograms } from "./lsp-programs.ts";

const root = join(import.meta.dirname, "../..");
const service = createService({
  env: { PATH: `${serverPrograms}:${dirname(process.execPath)}:${process.env.PATH}` },
});
const at = (name: string) => join(service.workspace, name);

beforeAll(async () => {
  await installServers();
  await service.start();
  for (const name of ["src", "gen", "tsconfig.json", "package.json"])
    await cp(join(root, name), at(`shop/${name}`), { recursive: true });
  const python = execFileSync("python3", ["-c", "import json; print(json.__path__[0])"], { encoding: "utf8" }).trim();
  await cp(python, at("py/json"), { recursive: true });
  await writeFile(at("py/pyproject.toml"), "");
});
afterAll(service.close);

async function call(tool: string, input: JsonObject) {
  const { part } = await connect(service, "caller").tools.callTool({ tool, input, agent: "free" });
  return part?.state.value as unknown as { output: string; error: string; metadata: JsonObject };
}

/** Returns the place of a text in a file. */
async function placeOf(filePath: string, text: string, word: string) {
  const lines = (await readFile(at(filePath), "utf8")).split("\n");
  const line = lines.findIndex((one) => one.includes(text));
  return { filePath, line: line + 1, column: (lines[line] ?? "").indexOf(word) + 1 };
}

/** Returns the files below a directory that import a name; those of imports on several lines are missing. */
async function filesThatImport(name: string, directory: string) {
  const statement = new RegExp(`^(import|from|export) .*\\b${name}\\b`, "m");
  const files = await Array.fromAsync(glob("**/*.{ts,py}", { cwd: directory }));
  const texts = await Promise.all(files.map((file) => readFile(join(directory, file), "utf8")));
  return files.filter((_, i) => statement.test(texts[i] ?? ""));
}

/** Repeats a check while a server says that it is not ready yet. */
const soon = (check: () => Promise<void>) => vi.waitFor(check, { timeout: 60_000, interval: 200 });

const projects = [
  {
    ...{
      server: "TypeScript 7",
      file: "shop/src/tool/errors.ts",
      text: "export class ToolFailure",
      word: "ToolFailure",
    },
    ...{
      hover: "class ToolFailure",
      user: "shop/src/tools/read.ts",
      use: "throw new ToolFailure",
      symbol: "InvalidInput (Class)",
    },
    ...{ broken: "const wrong: number = 'text';\n", error: "is not assignable to type 'number'" },
  },
  {
    ...{ server: "pyright", file: "py/json/decoder.py", text: "class JSONDecodeError", word: "JSONDecodeError" },
    ...{
      hover: "class JSONDecodeError",
      user: "py/json/__init__.py",
      use: "from .decoder import",
      symbol: "JSONDecodeError (Class)",
    },
    ...{ broken: "wrong: int = 'text'\n", error: 'is not assignable to "int"' },
  },
];

test.each(projects)(
  "$server answers every question about its project",
  async ({ file, text, word, hover, user, use, symbol }) => {
    const place = await placeOf(file, text, word);
    expect((await call("lsp_hover", place)).output).toContain(hover);
    const definition = await call("lsp_goto_definition", await placeOf(user, use, word));
    expect(definition.output).toContain(`${file}:${place.line}:${place.column}: ${text}`);
    const references = await call("lsp_find_references", place);
    expect(references.output).toContain(`${user}:`);
    const { output } = await call("lsp_find_references", { ...place, includeDeclaration: false });
    expect(output).not.toContain(`${file}:${place.line}:${place.column}`);
    expect((await call("lsp_document_symbols", { filePath: file })).output).toContain(symbol);
    expect((await call("lsp_workspace_symbols", { filePath: file, query: word })).output).toContain(word);
  },
);

test.each(projects)(
  "$server reports errors of the content as it is, after at most a few calls",
  async ({ user, broken, error }) => {
    const before = await readFile(at(user), "utf8");
    await writeFile(at(user), before + broken);
    await soon(async () => {
      const found = await call("lsp_diagnostics", { filePath: user, severity: "error" });
      expect(found.output).toContain(error);
    });
    await writeFile(at(user), before);
    await soon(async () => {
      const found = await call("lsp_diagnostics", { filePath: user, severity: "error" });
      expect(found.error ?? found.output).not.toContain(error);
      expect(found.output).toBeDefined();
    });
  },
);

test.each(projects)(
  "$server renames in all files of its project, and nowhere else",
  async ({ file, text, word, user }) => {
    const place = await placeOf(file, text, word);
    const importers = await filesThatImport(word, dirname(dirname(at(file))));
    expect(importers.length).toBeGreaterThan(0);
    const { output, error } = await call("lsp_rename", { ...place, newName: "Renamed" });
    expect(error).toBeUndefined();
    const renamed = output.split("\n").filter((line) => line.startsWith("M "));
    expect(renamed.length).toBeGreaterThan(importers.length);
    expect(await readFile(at(user), "utf8")).toContain("Renamed");
    expect(await readFile(at(file), "utf8")).toContain(text.replace(word, "Renamed"));
    const again = await call("lsp_find_references", {
      ...(await placeOf(file, text.replace(word, "Renamed"), "Renamed")),
    });
    expect(again.output).toContain(`${user}:`);
  },
);

test.each([
  { filePath: "shop/src/emoji.ts", text: 'export const face = "\u{1f600}", plum = face;\n', column: 27 },
  { filePath: "py/emoji.py", text: 'face = "\u{1f600}"; plum = face\nprint(plum)\n', column: 14 },
])("columns behind characters of two UTF-16 units are right in $filePath", async ({ filePath, text, column }) => {
  await writeFile(at(filePath), text);
  const place = { filePath, line: 1, column };
  const { output } = await call("lsp_goto_definition", place);
  expect(output).toContain(`${filePath}:1:${column}: `);
  expect((await call("lsp_rename", { ...place, newName: "renamed" })).output).toContain(`M ${filePath}`);
  expect(await readFile(at(filePath), "utf8")).toBe(text.replaceAll("plum", "renamed"));
});

test("a code action of TypeScript 7 is listed and applied", async () => {
  await writeFile(at("shop/src/one.ts"), "export const one = 1;\n");
  await writeFile(at("shop/src/two.ts"), "export const two = one + 1;\n");
  const range = { filePath: "shop/src/two.ts", startLine: 1, startColumn: 20, endLine: 1, endColumn: 23 };
  const { output } = await call("lsp_code_actions", range);
  const action = output.split("\n").find((line) => line.includes("import")) ?? output;
  const apply = action.slice(0, action.indexOf("}") + 1);
  expect((await call("lsp_code_actions", { ...range, apply })).output).toContain("M shop/src/two.ts");
  expect(await readFile(at("shop/src/two.ts"), "utf8")).toMatch(/^import \{ one \} from "\.\/one/);
});

test("what a server writes by itself is not in the workspace", async () => {
  const names = await readdir(at("shop"));
  expect(names.toSorted()).toEqual(["gen", "package.json", "src", "tsconfig.json"]);
});
