import type { JsonObject } from "@bufbuild/protobuf";

/** A tool file as a project has it for opencode, and a call of one of its tools. */
export interface ForeignFile {
  kind: string;
  path: string;
  source: string;
  tool: string;
  input: JsonObject;
  output: string;
  /** The part of the reason by which Node refuses to load the file, or to run the tool. */
  node?: { refusedAt: "load" | "run"; reason: string };
}

/** Files of the project that tool files import or read. */
export const projectFiles: Readonly<Record<string, string>> = {
  "package.json": `{ "type": "module" }`,
  ".env": "API_KEY=from the project\n",
  "docs/skill.md": "# A skill\n",
  "tsconfig.json": `{ "compilerOptions": { "paths": { "@/*": ["./src/*"] } } }`,
  "src/config/defaults.ts": `export enum Remote { Origin = "origin" }`,
  "src/core/repository.ts": `import { Remote } from "@/config/defaults";
    export class Repository {
      constructor(private readonly name: string, readonly remote: Remote = Remote.Origin) {}
      line(what: string) { return [what, this.name, this.remote].join(" "); }
    }`,
  "packages/codec/dist/index.mjs": `export const flip = (text) => [...text].reverse().join("");`,
  ".opencode/lib/request.ts": `export async function request(url: string, body?: unknown): Promise<{ path: string; body?: unknown }> {
      const answer = await fetch(url, body === undefined ? undefined : { method: "POST", body: JSON.stringify(body) });
      return (await answer.json()) as { path: string; body?: unknown };
    }`,
};

/** A package of npm that one file needs. */
export const neededPackage: Readonly<Record<string, string>> = {
  ".opencode/node_modules/@acme/names/package.json": `{ "name": "@acme/names", "type": "module", "main": "./index.js" }`,
  ".opencode/node_modules/@acme/names/index.js": `export const names = { first: () => "Ann" };`,
};

const plugin = `import { tool } from "@opencode-ai/plugin";`;
const declarations = `${plugin}\nimport "../node_modules/@opencode-ai/plugin/dist/index.d.ts";`;

type Case = Omit<ForeignFile, "kind" | "path" | "tool"> & { tool?: string; name: string };

function ofKind(kind: string, cases: readonly Case[]): ForeignFile[] {
  return cases.map(({ name, tool = name, ...rest }) => ({ kind, path: `.opencode/tool/${name}.ts`, tool, ...rest }));
}

/** A file with one tool, exported by the name of the file with underscores, that asks a program of the project over HTTP. */
function asksProgram(origin: string, name: string, method: "GET" | "POST"): Case {
  const exported = name.replaceAll("-", "_");
  const isRead = method === "GET";
  return {
    name,
    tool: `${name}_${exported}`,
    source: `${plugin}
      interface Answer { path: string; body?: { id?: string } }
      function origin(): string { return process.env.PROGRAM_URL || "${origin}"; }
      export const ${exported} = tool({
        description: "Asks the program: ${name}",
        args: {
          id: tool.schema.string().describe("Which one"),
          limit: tool.schema.number().int().positive().optional().describe("At most so many"),
          state: tool.schema.enum(["open", "done"]).default("open"),
        },
        async execute(args) {
          try {
            const answer = await fetch(origin() + "/${name}/" + args.id, ${
              isRead
                ? "undefined"
                : `{
              method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(args) }`
            });
            if (!answer.ok) return "Error: " + (await answer.text());
            const { path, body } = (await answer.json()) as Answer;
            return [path, body?.id ?? "nothing", args.state].join(" ");
          } catch (err) {
            return "Error: " + (err instanceof Error ? err.message : String(err));
          }
        },
      });`,
    input: { id: "a1" },
    output: `/${name}/a1 ${isRead ? "nothing" : "a1"} open`,
  };
}

const readers = ["check-task", "memory-list", "memory-read", "memory-search", "task-list", "task-next"];
const writers = [
  ...["cancel-task", "memory-delete", "memory-write", "schedule", "schedule-manage", "send-message", "spawn-task"],
  ...["task-create", "task-update", "trigger-rollback", "trigger-update"],
];

function plainFiles(origin: string): Case[] {
  return [
    ...readers.map((name) => asksProgram(origin, name, "GET")),
    ...writers.map((name) => asksProgram(origin, name, "POST")),
    {
      name: "echo",
      tool: "echo_echo",
      source: `${plugin}
        export const echo = tool({ description: "Echoes", args: { text: tool.schema.string() }, execute: async ({ text }) => text });`,
      input: { text: "héllo" },
      output: "héllo",
    },
    {
      name: "time",
      source: `${plugin}
        export default tool({ description: "Writes a time", args: { at: tool.schema.number() },
          async execute({ at }: { at: number }) { return new Date(at).toISOString(); } });`,
      input: { at: 0 },
      output: "1970-01-01T00:00:00.000Z",
    },
  ];
}

/** Files that import modules of the project by aliases and as if these were compiled. */
const aliasFiles = ["branch", "clone", "commit", "pr", "pr-status", "push"].map((what): Case => {
  const exported = `github_${what.replaceAll("-", "_")}`;
  return {
    name: `github-${what}`,
    tool: `github-${what}_${exported}`,
    source: `${plugin}
      import { Repository } from "../../src/core/repository.js";
      import { Remote } from "@/config/defaults";
      export const ${exported} = tool({
        description: "Works on the repository",
        args: { name: tool.schema.string(), from: tool.schema.string().optional() },
        async execute(args) { return new Repository(args.name, Remote.Origin).line("${what}"); },
      });`,
    input: { name: "app" },
    output: `${what} app origin`,
  };
});

const needsBun = (refusedAt: "load" | "run") => ({ node: { refusedAt, reason: "it needs Bun: install it" } });

/** Files that import declarations of types for their effect, most of which use Bun. */
const declarationFiles: readonly Case[] = [
  {
    name: "base64",
    source: `${declarations}
      import { flip } from "../../packages/codec/dist/index.mjs";
      export default tool({ description: "", args: { text: tool.schema.string() }, execute: async ({ text }) => btoa(flip(text)) });`,
    input: { text: "abc" },
    output: "Y2Jh",
  },
  {
    name: "cicd",
    tool: "cicd_status",
    source: `${declarations}
      export const status = tool({ description: "", args: {}, async execute() {
        const { stdout, exitCode } = await Bun.$\`printf done\`.nothrow().quiet();
        return JSON.stringify({ text: stdout.toString(), exitCode });
      } });`,
    input: {},
    output: `{"text":"done","exitCode":0}`,
    ...needsBun("run"),
  },
  {
    name: "compress",
    source: `${declarations}
      export default tool({ description: "", args: { text: tool.schema.string() }, async execute({ text }) {
        return new TextDecoder().decode(Bun.gunzipSync(Bun.gzipSync(new TextEncoder().encode(text))));
      } });`,
    input: { text: "small" },
    output: "small",
    ...needsBun("run"),
  },
  {
    name: "crypto",
    tool: "crypto_digest",
    source: `${declarations}
      const algorithms = ["sha256", "sha512"] as const;
      type Algorithm = (typeof algorithms)[number];
      export const digest = tool({
        description: "",
        args: { algorithm: tool.schema.enum(algorithms as unknown as [Algorithm, ...Algorithm[]]), data: tool.schema.string() },
        async execute({ algorithm, data }) { return new Bun.CryptoHasher(algorithm).update(data).digest("hex").slice(0, 8); },
      });`,
    input: { algorithm: "sha256", data: "abc" },
    output: "ba7816bf",
    ...needsBun("run"),
  },
  {
    name: "hash",
    tool: "hash_streaming",
    source: `${declarations}
      export const streaming = tool({ description: "", args: { path: tool.schema.string() }, async execute({ path }) {
        const file = Bun.file(path);
        return JSON.stringify({ exists: await file.exists(), size: file.size });
      } });`,
    input: { path: "docs/skill.md" },
    output: `{"exists":true,"size":10}`,
    ...needsBun("run"),
  },
  {
    name: "math",
    tool: "math_evaluate",
    source: `${declarations}
      export const evaluate = tool({ description: "", args: { a: tool.schema.number(), b: tool.schema.number() },
        async execute({ a, b }, _context) { return JSON.stringify({ sum: (BigInt(a) + BigInt(b)).toString() }); } });`,
    input: { a: 2, b: 3 },
    output: `{"sum":"5"}`,
  },
  {
    name: "wasm",
    tool: "wasm_inspect",
    source: `${declarations}
      const empty = new Uint8Array([0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00]);
      export const inspect = tool({ description: "", args: {}, async execute() {
        const compiled = await WebAssembly.compile(empty);
        return "exports: " + WebAssembly.Module.exports(compiled).length;
      } });`,
    input: {},
    output: "exports: 0",
  },
  {
    name: "zig",
    tool: "zig_fmt",
    source: `${declarations}
      export const fmt = tool({ description: "", args: { code: tool.schema.string().optional() }, async execute(args) {
        const proc = Bun.spawn(["cat"], { stdin: new TextEncoder().encode(args.code), stdout: "pipe", stderr: "pipe" });
        const [stdout, stderr] = await Promise.all([new Response(proc.stdout).text(), new Response(proc.stderr).text()]);
        return JSON.stringify({ exitCode: await proc.exited, stdout, stderr });
      } });`,
    input: { code: "const a = 1;" },
    output: `{"exitCode":0,"stdout":"const a = 1;","stderr":""}`,
    ...needsBun("run"),
  },
];

/** Files with other forms, one or a few of each. */
function otherFiles(origin: string): ForeignFile[] {
  return [
    ...ofKind("several tools in a file; the environment file of the project", [
      {
        name: "github",
        tool: "github_issue",
        source: `${plugin}
          const get = async (path: string) => ((await (await fetch("${origin}" + path)).json()) as { path: string }).path;
          export const issue = tool({ description: "", args: { number: tool.schema.number() }, execute: async ({ number }) => await get("/issues/" + number) });
          export const issues = tool({ description: "", args: {}, execute: async () => await get("/issues") });
          export const pull = tool({ description: "", args: { number: tool.schema.number() }, execute: async ({ number }) => await get("/pulls/" + number) });
          export const pulls = tool({ description: "", args: {}, execute: async () => await get("/pulls") });`,
        input: { number: 7 },
        output: "/issues/7",
      },
      {
        name: "index",
        tool: "index_key",
        source: `${plugin}
          import { existsSync } from "node:fs";
          import { readFile } from "fs/promises";
          import { join } from "path";
          async function load(name: string): Promise<string | undefined> {
            const path = join(process.cwd(), ".env");
            if (!existsSync(path)) return undefined;
            return (await readFile(path, "utf8")).split("\\n").find((line) => line.startsWith(name + "="))?.split("=")[1];
          }
          export const key = tool({ description: "", args: { name: tool.schema.string() }, execute: async ({ name }) => (await load(name)) ?? "none" });
          export const has = tool({ description: "", args: {}, execute: async () => String((await load("API_KEY")) !== undefined) });
          export default tool({ description: "", args: {}, execute: async () => "all" });
          export { load as loadVariable };`,
        input: { name: "API_KEY" },
        output: "from the project",
      },
    ]),
    ...ofKind("imports without extension", [
      {
        name: "github-triage",
        source: `/// <reference path="../env.d.ts" />
          import { tool } from "@opencode-ai/plugin";
          import { request } from "../lib/request";
          export default tool({
            description: "Assigns an issue",
            args: { assignee: tool.schema.enum(["ann", "bob"]).describe("Who"), labels: tool.schema.array(tool.schema.enum(["bug", "docs"])).default([]) },
            async execute(args) { return (await request("${origin}/triage", args)).path + " " + args.assignee; },
          });`,
        input: { assignee: "ann" },
        output: "/triage ann",
      },
    ]),
    ...ofKind("modules of Bun, its global in a file with several tools", [
      {
        name: "database",
        tool: "database_query",
        source: `${plugin}
          import { Database } from "bun:sqlite";
          export const query = tool({ description: "", args: { sql: tool.schema.string() }, async execute({ sql }) {
            using db = new Database(":memory:");
            return JSON.stringify(db.query(sql).all());
          } });`,
        input: { sql: "select 1 as one" },
        output: `[{"one":1}]`,
        ...needsBun("load"),
      },
      {
        name: "react",
        tool: "react_list",
        source: `${plugin}
          export const list = tool({ description: "", args: {}, execute: async () => [...new Bun.Glob("docs/*").scanSync(".")].join() });
          export const count = tool({ description: "", args: {}, execute: async () => String([...new Bun.Glob("*").scanSync(".")].length) });`,
        input: {},
        output: "docs/skill.md",
        ...needsBun("run"),
      },
    ]),
    ...ofKind("a package of npm", [
      {
        name: "agent-names",
        source: `${plugin}
          import { names } from "@acme/names";
          export default tool({ description: "", args: {}, execute: async () => names.first() });`,
        input: {},
        output: "Ann",
      },
    ]),
    ...ofKind("`ctx.ask`, `ctx.agent`, `import.meta.url`", [
      {
        name: "cleanroom",
        source: `${plugin}
          export default tool({ description: "", args: { path: tool.schema.string() }, async execute({ path }, ctx) {
            await ctx.ask({ permission: "read", patterns: [path], always: ["*"], metadata: { path } });
            ctx.metadata({ title: "Read " + path });
            return ctx.agent + " " + (ctx.abort instanceof AbortSignal);
          } });`,
        input: { path: "docs/skill.md" },
        output: "build true",
      },
      {
        name: "arithmetic",
        tool: "arithmetic_add",
        source: `${plugin}
          export const add = tool({ description: "Adds", args: { a: tool.schema.number(), b: tool.schema.number() }, async execute(args) { return String(args.a + args.b); } });
          export const multiply = tool({ description: "Multiplies", args: { a: tool.schema.number(), b: tool.schema.number() }, async execute(args) { return String(args.a * args.b); } });`,
        input: { a: 2, b: 40 },
        output: "42",
      },
      {
        name: "skills",
        source: `${plugin}
          import { readFileSync } from "node:fs";
          import { dirname, join } from "node:path";
          import { fileURLToPath } from "node:url";
          const here = dirname(fileURLToPath(import.meta.url));
          export default tool({ description: "", args: {}, execute: async () => readFileSync(join(here, "../../docs/skill.md"), "utf8").trim() });`,
        input: {},
        output: "# A skill",
      },
    ]),
  ];
}

/** Returns the files; `origin` is the address of a program of the project. */
export function foreignFiles(origin: string): readonly ForeignFile[] {
  return [
    ...ofKind("schemas of `tool.schema`, requests over HTTP", plainFiles(origin)),
    ...ofKind("`paths` of `tsconfig.json`, imports of `x.js` for `x.ts`", aliasFiles),
    ...ofKind("imports of `.d.ts` files, most of them with `Bun`", declarationFiles),
    ...otherFiles(origin),
  ];
}
