import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, statSync } from "node:fs";
import { mkdir, open, readFile, rename, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { rgPath } from "@vscode/ripgrep";
import type { SandboxProfile } from "../../src/sandbox/confinement.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, type TestWorkspace } from "../../src/testing.ts";
import type { DefinedTool, ToolResult } from "../../src/tool/tool.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createEditTool } from "../../src/tools/edit.ts";
import { createFileChanges } from "../../src/tools/fs/change-file.ts";
import { glob } from "../../src/tools/glob.ts";
import { grep } from "../../src/tools/grep.ts";
import type { Pipes } from "../../src/tools/process/run-command.ts";
import type { Supervisor } from "../../src/tools/process/supervisor.ts";
import { readTool } from "../../src/tools/read.ts";

/** A tool beside the least that does the same. */
export interface Pair {
  readonly what: string;
  readonly bareWhat: string;
  /** Target for the tool, as a multiple of the bare form; undefined: none. */
  readonly limit: number | undefined;
  /** Calls in a round. */
  readonly times: number;
  ours(): Promise<unknown>;
  bare(): Promise<unknown> | unknown;
  /** Throws if both give different answers. */
  check?(): Promise<void>;
}

/** The tools' own work, planning and checks included, without service and store. */
export async function makePairs(
  site: TestWorkspace,
  { supervisor, pipes, files }: { supervisor: Supervisor; pipes: Pipes; files: number },
): Promise<Pair[]> {
  await makeTree(site.directory, files);
  // What the kernel still has to write would be measured with whatever comes first.
  await once(spawn("sync"), "close");
  // The rules that are built in.
  site.judge = judgeBy({});
  const call = (tool: DefinedTool, input: Parameters<typeof callTool>[2]) => () => callTool(site, tool, input);
  const bash = async (profile: SandboxProfile) => {
    const wanted = { profile, network: "open" } as const;
    const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
    return createBash({ supervisor, pipes, sandbox });
  };
  const spawnBash = () => once(spawn("bash", ["-c", "true"]), "close");
  const bareBash = { bareWhat: "spawn bash -c", times: 100, bare: spawnBash };
  return [
    { what: "bash true", limit: 1.3, ours: call(await bash("off"), { command: "true" }), ...bareBash },
    {
      what: "bash true, in the sandbox",
      limit: undefined,
      ours: call(await bash("workspace-write"), { command: "true" }),
      ...bareBash,
    },
    readPair(site, call(readTool, { filePath: "lines.txt" })),
    await editPair(site),
    globPair(call(glob, { pattern: "**/*.ts" }), site),
    grepPair(call(grep, { pattern: "needle" }), site),
  ];
}

const linesText = Array.from({ length: 2_000 }, (_, i) => `line ${i} of a text`).join("\n");

/** Files of different dates, a few that git ignores, and a few that reading asks for. */
async function makeTree(folder: string, files: number): Promise<void> {
  await writeFile(join(folder, "lines.txt"), `${linesText}\n`);
  await writeFile(join(folder, ".gitignore"), "f5.ts\n");
  for (let from = 0; from < files; from += 100) {
    const own = join(folder, "tree", String(from % 1_000), String(from));
    await mkdir(own, { recursive: true });
    await Promise.all(
      Array.from({ length: Math.min(100, files - from) }, async (_, i) => {
        const file = join(own, `f${i}.${i % 5 === 0 ? "ts" : from === 0 && i < 10 ? "env" : "md"}`);
        await writeFile(file, `file ${from + i}\n${i === 7 ? "a needle\n" : ""}`);
        // Scattered, and no two the same.
        const modified = 1_700_000_000 + (((from + i) * 7_919) % files);
        await utimes(file, modified, modified);
      }),
    );
  }
}

function readPair({ directory }: TestWorkspace, read: () => Promise<ToolResult>): Pair {
  const bare = () =>
    readFileSync(join(directory, "lines.txt"), "utf8")
      .split("\n")
      .map((line, index) => `${index + 1}: ${line}`)
      .join("\n");
  return {
    what: "read 2,000 lines",
    bareWhat: "readFileSync and numbers",
    limit: 2,
    times: 500,
    // The bytes of both are counted: a string of many parts is joined only when it is used.
    ours: async () => Buffer.byteLength((await read()).output ?? ""),
    bare: () => Buffer.byteLength(bare()),
  };
}

async function editPair(site: TestWorkspace): Promise<Pair> {
  const edit = createEditTool({ changes: createFileChanges() });
  const [ours, theirs] = ["ours.txt", "theirs.txt"].map((name) => join(site.directory, name));
  for (const file of [ours, theirs]) await writeFile(file ?? "", linesText);
  await callTool(site, readTool, { filePath: "ours.txt" });
  let turn = 0;
  const words = ["line 1000 of a text", "line 1000 of the text"];
  const next = () => ({ oldString: words[turn % 2] ?? "", newString: words[++turn % 2] ?? "" });
  let bareTurn = 0;
  return {
    what: "edit",
    bareWhat: "read, replace, write, sync, rename",
    limit: 1.5,
    times: 300,
    ours: () => callTool(site, edit, { filePath: "ours.txt", ...next() }),
    async bare() {
      const text = await readFile(theirs ?? "", "utf8");
      const temporary = `${theirs}.new`;
      await using file = await open(temporary, "w");
      await file.writeFile(text.replace(words[bareTurn % 2] ?? "", words[++bareTurn % 2] ?? ""));
      await file.sync();
      await rename(temporary, theirs ?? "");
    },
  };
}

const maxShown = 100;

/** By ripgrep's type, because its `--glob` would bring back what git ignores; nothing that looks at dates itself is faster. */
function globPair(ours: () => Promise<ToolResult>, { directory }: TestWorkspace): Pair {
  const names = async () => {
    const type = ["--type-add=wanted:*.ts", "--type=wanted"];
    const found = await rg(directory, ["--files", "--null", "--sortr=modified", ...type, "./"], "\0");
    return found.filter((name) => !secret.test(name)).slice(0, maxShown);
  };
  return {
    what: "glob **/*.ts",
    bareWhat: "rg --files --sortr=modified",
    limit: 1.2,
    times: 5,
    ours,
    bare: async () => (await names()).join("\n"),
    check: async () => checkSame(linesOf(await ours(), /^tree.*/), await names()),
  };
}

/** Unsorted, because ripgrep sorts in one thread only; beside it what is left out is counted, by names. */
function grepPair(ours: () => Promise<ToolResult>, { directory }: TestWorkspace): Pair {
  const newest = async () => {
    const [matches, names] = await Promise.all([
      rg(directory, ["--line-number", "--null", "--with-filename", "--", "needle", "./"], "\n"),
      rg(directory, ["--files", "--null", "--threads=1", "./"], "\0"),
    ]);
    const leftOut = names.filter((name) => secret.test(name)).length;
    const byFile = Map.groupBy(matches, (match) => match.slice(0, match.indexOf("\0")));
    const dated = [...byFile].flatMap(([name, lines]) =>
      secret.test(name) ? [] : [{ name, lines, modified: statSync(join(directory, name)).mtimeMs }],
    );
    return { leftOut, files: dated.sort((a, b) => b.modified - a.modified) };
  };
  return {
    what: "grep needle",
    bareWhat: "rg, the dates, and rg --files for what is left out",
    limit: 1.2,
    times: 5,
    ours,
    async bare() {
      const { leftOut, files } = await newest();
      return [...files.flatMap(({ lines }) => lines).slice(0, maxShown), `${leftOut} left out`].join("\n");
    },
    async check() {
      const { leftOut, files } = await newest();
      const expected = files.slice(0, maxShown).map(({ name }) => name);
      const result = await ours();
      checkSame(linesOf(result, /^tree.*(?=:$)/), expected);
      if (result.metadata?.leftOut !== leftOut) throw new Error(`grep left out ${result.metadata?.leftOut} files`);
    },
  };
}

function linesOf({ output = "" }: ToolResult, name: RegExp): string[] {
  return output.split("\n").flatMap((line) => name.exec(line) ?? []);
}

function checkSame(ours: readonly string[], bare: readonly string[]): void {
  if (ours.length === bare.length && bare.every((name, i) => name === `./${ours[i]}`)) return;
  throw new Error(`the searches that are compared give different answers: ${ours.length} and ${bare.length} files`);
}

const secret = /\.env(\.[^/]*)?$/;

async function rg(cwd: string, args: readonly string[], delimiter: string): Promise<string[]> {
  const same = ["--no-config", "--no-messages", "--hidden", "--no-require-git", "--glob=!.git", "--color=never"];
  const child = spawn(rgPath, [...same, ...args], { cwd, stdio: ["ignore", "pipe", "ignore"] });
  const chunks: Buffer[] = [];
  for await (const chunk of child.stdout) chunks.push(chunk);
  return Buffer.concat(chunks).toString().split(delimiter).slice(0, -1);
}
