/** Each language server of the built-in table starts in the sandbox and answers; TypeScript and pyright have lsp.test.ts. */
import { spawnSync } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { connect } from "../e2e/clients.ts";
import { createService } from "../e2e/service.ts";
import { installOtherServers, otherServerPrograms } from "./lsp-programs.ts";

const path = [otherServerPrograms, dirname(process.execPath), process.env.PATH].join(":");
const service = createService({ env: { PATH: path } });

/** A project of a language: its files, the first of which is asked about. */
interface Project {
  files: Record<string, string>;
  /** A place in the first file and what its hover shows; absent where a schema would have to be fetched. */
  hover?: [line: number, column: number, text: string];
  /** A symbol of the first file; absent if the server lists none. */
  symbol?: string;
  /** An error of the first file. */
  error: string;
}

/** A part of Rust's toolchain that no registry holds: where it is not there, its case is what a user sees then. */
const rust = "rust-analyzer";
const hasRust = spawnSync(rust, ["--version"]).status === 0;

const goFile = "package main\n\nfunc plum() int { return 1 }\n\nfunc main() { plum(); var s string = plum() }\n";
const rustFile = "fn plum() -> i32 {\n    1\n}\n\nfn main() {\n    let s: &str = plum();\n}\n";

const projects: Record<string, Project> = {
  gopls: {
    files: { "go/main.go": goFile, "go/go.mod": "module plum\n\ngo 1.26\n" },
    ...{ hover: [5, 16, "func plum() int"], symbol: "plum (Function)", error: "cannot use plum()" },
  },
  clangd: {
    files: { "c/main.c": "int plum(void) { return 1; }\nint main(void) { return plum(); }\nint bad = missing;\n" },
    ...{ hover: [2, 25, "plum"], symbol: "plum (Function)", error: "undeclared" },
  },
  bash: {
    files: { "sh/run.sh": "plum() {\n  echo one\n}\nplum\n" },
    // Its errors are those of shellcheck.
    ...{ hover: [4, 2, "plum"], symbol: "plum (Function)", error: "" },
  },
  yaml: {
    files: { "yaml/a.yaml": "plum:\n  size: 1\nbad: [1\n" },
    ...{ symbol: "plum (", error: "error[YAML]" },
  },
  json: {
    files: { "json/a.json": '{ "plum": 1, "bad": }\n' },
    ...{ symbol: "plum (", error: "Value expected" },
  },
  css: {
    files: { "css/a.css": ".plum { color: red; }\n.bad { color }\n" },
    ...{ hover: [1, 10, "color"], symbol: ".plum (", error: "colon expected" },
  },
  html: {
    files: { "html/a.html": '<main id="plum"><p>text</p></main>\n<style>p { color }</style>\n' },
    ...{ hover: [1, 3, "main"], symbol: "main#plum (", error: "" },
  },
  [rust]: {
    files: { "rust/src/main.rs": rustFile, "rust/Cargo.toml": '[package]\nname = "plum"\nversion = "0.1.0"\n' },
    ...{ hover: [6, 20, "fn plum() -> i32"], symbol: "plum (Function)", error: "expected &str" },
  },
};

beforeAll(async () => {
  await installOtherServers();
  await service.start();
  for (const { files } of Object.values(projects)) {
    for (const [name, text] of Object.entries(files)) {
      await mkdir(dirname(join(service.workspace, name)), { recursive: true });
      await writeFile(join(service.workspace, name), text);
    }
  }
});
afterAll(service.close);

async function call(tool: string, input: JsonObject) {
  const { part } = await connect(service, "caller").tools.callTool({ tool, input, agent: "free" });
  return part?.state.value as unknown as { output: string; error: string };
}

const asked = Object.keys(projects).filter((name) => name !== rust || hasRust);

test.runIf(!hasRust)(`${rust}, which is not there, is named with the line that installs it`, async () => {
  await vi.waitFor(
    async () => {
      const { error } = await call("lsp_document_symbols", { filePath: "rust/src/main.rs" });
      expect(error).toContain("rustup component add rust-analyzer");
    },
    { timeout: 30_000, interval: 300 },
  );
});

test.each(asked)("%s starts in the sandbox and answers about a file", async (name) => {
  const { files, hover, symbol = "", error } = projects[name] as Project;
  const [filePath = ""] = Object.keys(files);
  /** Repeats a question while the server reads the project. */
  const answer = async (tool: string, text: string, input: JsonObject = {}) =>
    await vi.waitFor(
      async () => {
        const { output, error: failure } = await call(tool, { filePath, ...input });
        expect(failure ?? output).toContain(text);
      },
      { timeout: 15_000, interval: 300 },
    );
  await answer("lsp_document_symbols", symbol);
  if (hover) await answer("lsp_hover", hover[2], { line: hover[0], column: hover[1] });
  if (error !== "") await answer("lsp_diagnostics", error);
});
