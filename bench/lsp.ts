import { type ChildProcess, spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { JsonObject } from "@bufbuild/protobuf";
import { createMessageConnection, StreamMessageReader, StreamMessageWriter } from "vscode-jsonrpc/node";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { installServers, serverPrograms } from "../test/clients/lsp-programs.ts";
import type { Http2Client } from "./http2-client.ts";
import type { Processes } from "./processes.ts";
import { median, spread, table, target } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Sizes of the measurement. */
export interface LspPlan {
  readonly rounds: number;
  /** Calls of a kind in a round, one after the other. */
  readonly calls: number;
}

/** Language servers with one file each, and a word in its first line. */
const servers = {
  "TypeScript 7": {
    program: "tsc",
    args: ["--lsp", "--stdio"],
    name: "typescript",
    file: "ts/m0.ts",
    id: "typescript",
  },
  pyright: { program: "pyright-langserver", args: ["--stdio"], name: "pyright", file: "py/m0.py", id: "python" },
} as const;

type ServerCase = (typeof servers)[keyof typeof servers];

const fileCount = 20;

/** Measures questions and renames beside a bare client and apply_patch, then start and memory of each server. */
export async function measureLsp(processes: Processes, plan: LspPlan, print: (text: string) => void): Promise<void> {
  await installServers();
  const { workspace, connect } = await startToolgate(processes, { name: "lsp", rules });
  await writeProjects(workspace);
  const client = connect("caller");
  const starts: string[][] = [];
  const bare: Record<string, BareServer> = {};
  for (const [label, server] of Object.entries(servers)) {
    bare[label] = await startBare(join(workspace, server.file), server);
    const before = performance.now();
    await call(client, "lsp_hover", { filePath: server.file, line: 1, column: 14 });
    starts.push([label, ms(performance.now() - before), ms(bare[label].startMs), mib(residentBytes(server.program))]);
  }
  await measureHover(client, bare["TypeScript 7"], plan, print);
  await measureRename(client, workspace, plan, print);
  print(table(["", "first hover with start, ms", "bare, ms", "memory, MiB (ours and bare)"], starts));
  for (const { end } of Object.values(bare)) end();
  client.close();
}

const rules = [
  ...['edit = "allow"', 'lsp_server = "allow"'],
  ...Object.values(servers).flatMap(({ name, program, args }) => [
    ...[
      `[lsp.${name}]`,
      `command = ${JSON.stringify(join(serverPrograms, program))}`,
      `args = ${JSON.stringify(args)}`,
    ],
  ]),
].join("\n");

async function writeProjects(workspace: string): Promise<void> {
  for (const name of ["ts", "py"]) await mkdir(join(workspace, name), { recursive: true });
  await writeFile(join(workspace, "ts/package-lock.json"), "{}");
  await writeFile(join(workspace, "ts/tsconfig.json"), '{ "compilerOptions": { "module": "nodenext" } }');
  await writeFile(join(workspace, "py/pyproject.toml"), "");
  await writeFile(join(workspace, "py/m0.py"), "def apple_one(n: int) -> int:\n    return n\n");
  for (let i = 0; i < fileCount; i += 1) {
    const text =
      i === 0 ? "export const apple = 1;\n" : `import { apple } from "./m0.js";\nexport const m${i} = apple + ${i};\n`;
    await writeFile(join(workspace, `ts/m${i}.ts`), text);
  }
}

async function call(client: Http2Client, tool: string, input: JsonObject, sessionId = ""): Promise<string> {
  const { part } = await client.connect(ToolService.method.callTool, { tool, input, sessionId });
  const { state } = part ?? {};
  if (state?.case !== "completed") throw new Error(`${tool} failed: ${JSON.stringify(state?.value)}`);
  return state.value.output;
}

/** A language server without anything around it. */
interface BareServer {
  readonly startMs: number;
  hover(): Promise<unknown>;
  end(): void;
}

async function startBare(file: string, { program, args, id }: ServerCase): Promise<BareServer> {
  const before = performance.now();
  const root = join(file, "..");
  const child: ChildProcess = spawn(join(serverPrograms, program), [...args], {
    cwd: root,
    stdio: ["pipe", "pipe", "ignore"],
  });
  if (child.stdin === null || child.stdout === null) throw new Error(`${program} has no pipes`);
  const connection = createMessageConnection(
    new StreamMessageReader(child.stdout),
    new StreamMessageWriter(child.stdin),
  );
  connection.onRequest((method, params) => (method === "workspace/configuration" ? nulls(params) : null));
  connection.listen();
  const uri = pathToFileURL(file).href;
  const folder = { uri: pathToFileURL(root).href, name: "bench" };
  await connection.sendRequest("initialize", {
    processId: null,
    rootUri: folder.uri,
    workspaceFolders: [folder],
    capabilities: {},
  });
  await connection.sendNotification("initialized", {});
  const text = await readFile(file, "utf8");
  await connection.sendNotification("textDocument/didOpen", {
    textDocument: { uri, languageId: id, version: 1, text },
  });
  const hover = () =>
    connection.sendRequest("textDocument/hover", { textDocument: { uri }, position: { line: 0, character: 13 } });
  await hover();
  return { startMs: performance.now() - before, hover, end: () => child.kill("SIGKILL") };
}

const nulls = (params: unknown) =>
  typeof params === "object" && params !== null && "items" in params && Array.isArray(params.items)
    ? params.items.map(() => null)
    : [];

async function measureHover(
  client: Http2Client,
  bare: BareServer | undefined,
  { rounds, calls }: LspPlan,
  print: (text: string) => void,
): Promise<void> {
  const samples: { hover: number; bare: number; echo: number }[] = [];
  for (let round = 0; round <= rounds; round += 1) {
    const hover = await time(calls, () => call(client, "lsp_hover", { filePath: "ts/m0.ts", line: 1, column: 14 }));
    const echo = await time(calls, () => call(client, "echo", { text: "hover" }));
    samples.push({ hover, echo, bare: await time(calls, () => bare?.hover()) });
  }
  const counted = samples.slice(1);
  const ratios = counted.map(({ hover, bare, echo }) => hover / (bare + echo));
  print(`Median (min–max) of ${rounds} rounds of ${calls} calls of each kind, one at a time, over one connection.`);
  print(
    table(
      ["lsp_hover, ms", "bare hover, ms", "echo, ms", "hover ÷ (bare + echo)"],
      [
        [
          ...(["hover", "bare", "echo"] as const).map((key) =>
            spread(
              counted.map((one) => one[key]),
              2,
            ),
          ),
          spread(ratios, 2),
        ],
      ],
    ),
  );
  print(target("a warm hover ÷ a bare one and an echo", median(ratios), 1.1, "×"));
}

/** Renames a symbol in 20 files and back; back is the same change as a patch in every other round. */
async function measureRename(
  client: Http2Client,
  workspace: string,
  { rounds }: LspPlan,
  print: (text: string) => void,
): Promise<void> {
  const sessionId = await newSession(client);
  const files = Array.from({ length: fileCount }, (_, i) => `ts/m${i}.ts`);
  for (const filePath of files) await call(client, "read", { filePath }, sessionId);
  const samples: { rename: number; patch: number }[] = [];
  for (let round = 0; round <= rounds; round += 1) {
    const place = { filePath: "ts/m0.ts", line: 1, column: 14 };
    const rename = await time(1, () => call(client, "lsp_rename", { ...place, newName: "pear" }, sessionId));
    const patchText = await patchOf(workspace, files);
    samples.push({ rename, patch: await time(1, () => call(client, "apply_patch", { patchText }, sessionId)) });
  }
  const counted = samples.slice(1);
  const ratios = counted.map(({ rename, patch }) => rename / patch);
  print(
    table(
      [`rename in ${fileCount} files, ms`, "apply_patch of the same lines, ms", "rename ÷ apply_patch"],
      [
        [
          spread(
            counted.map(({ rename }) => rename),
            1,
          ),
          spread(
            counted.map(({ patch }) => patch),
            1,
          ),
          spread(ratios, 2),
        ],
      ],
    ),
  );
}

async function newSession(client: Http2Client): Promise<string> {
  const { part } = await client.connect(ToolService.method.callTool, { tool: "echo", input: { text: "first" } });
  return part?.sessionId ?? "";
}

/** Makes the patch that takes a rename back. */
async function patchOf(workspace: string, files: readonly string[]): Promise<string> {
  const sections = await Promise.all(
    files.map(async (file) => {
      const lines = (await readFile(join(workspace, file), "utf8")).trimEnd().split("\n");
      const changed = lines.flatMap((line) =>
        line.includes("pear") ? [`-${line}`, `+${line.replaceAll("pear", "apple")}`] : [` ${line}`],
      );
      return [`*** Update File: ${file}`, "@@", ...changed];
    }),
  );
  return ["*** Begin Patch", ...sections.flat(), "*** End Patch"].join("\n");
}

/** Returns the median time of a call, on which other programs of the machine have little influence. */
async function time(times: number, work: () => unknown): Promise<number> {
  const samples: number[] = [];
  for (let turn = 0; turn < times; turn += 1) {
    const before = performance.now();
    await work();
    samples.push(performance.now() - before);
  }
  return median(samples);
}

/** Returns the resident memory of each tree of processes of a program, the largest first. */
function residentBytes(program: string): number[] {
  const found = readdirSync("/proc").flatMap((pid) => {
    const read = (file: string) => {
      try {
        return readFileSync(`/proc/${pid}/${file}`, "utf8");
      } catch {
        return "";
      }
    };
    const line = read("cmdline");
    if (!line.includes(program) || line.startsWith("bwrap") || !/--lsp|--stdio/.test(line)) return [];
    return [Number(read("statm").split(" ")[1]) * 4_096];
  });
  return found.toSorted((one, other) => other - one).filter((bytes) => bytes > 10 * 1_048_576);
}

const ms = (value: number) => value.toFixed(0);
const mib = (values: readonly number[]) => values.map((bytes) => (bytes / 1_048_576).toFixed(0)).join(", ");
