import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { SandboxPlace } from "../../src/sandbox/confinement.ts";
import { createMountPlanner } from "../../src/sandbox/plan-files.ts";
import { openSandbox, type Sandbox } from "../../src/sandbox/sandbox.ts";
import { judgeBy } from "../../src/testing.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import type { Goal } from "../goals.ts";
import { percentile, spread, table } from "../report.ts";
import { ratios } from "../rounds.ts";
import { hiddenFiles, makeTree } from "./tree.ts";

/** Sizes of the measurements. */
export interface SandboxPlan {
  readonly rounds: number;
  /** Files of the workspace in which commands are started. */
  readonly files: number;
  /** Files of the workspaces that are indexed. */
  readonly sizes: readonly number[];
}

/** Measures what the sandbox adds to the start of a command, and the index of names by the size of a workspace. */
export async function measureSandbox(
  folder: string,
  { rounds, files, sizes }: SandboxPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const workspace = treeOf(folder, files);
  const pipes = createPipes();
  const directories = { temporary: join(folder, "temporary"), mountPoints: join(folder, "mounts") };
  const settings = { pipes, agents: new Map(), writable: [], hidden: [], ...directories };
  const sandboxOf = (network: "proxy" | "none") =>
    openSandbox({ wanted: { profile: "workspace-write", network }, ...settings });
  const [closed, proxied] = [await sandboxOf("none"), await sandboxOf("proxy")];
  if (closed.problem !== undefined) throw new Error(closed.problem);
  const timesOf = (name: string) => times.get(name) ?? [];
  let times = new Map<string, number[]>();
  try {
    const starts = startsOf({ closed, proxied, workspace });
    times = await measureStarts(starts, rounds);
    print(
      `Start and end of \`bash -c true\` in a workspace of ${count(files)} files, ${rounds} interleaved rounds, ms.`,
    );
    const row = (name: string) => {
      const all = timesOf(name);
      return [name, ...[0.5, 0.9].map((share) => percentile(all, share).toFixed(1)), spread(all, 1)];
    };
    print(table(["", "p50", "p90", "median (min–max)"], Object.keys(starts).map(row)));
    print(await measureFirst(proxied, workspace, Math.max(3, Math.ceil(rounds / 4))));
  } finally {
    closed.close();
    proxied.close();
    await pipes.close();
  }
  print(await measureIndex(folder, sizes, rounds));
  const control = ratios(timesOf(again), timesOf(everything));
  const where = `workspace of ${count(files)} files`;
  return [
    {
      ...{
        figure: `a session's next command, ${where} ÷ bubblewrap with the same masks`,
        limit: 1.5,
        unit: "×",
        control,
      },
      values: ratios(timesOf(waited), timesOf(masked)),
    },
    { figure: `a command in a new sandbox, ${where}`, limit: 25, unit: "ms", values: timesOf(everything), control },
  ];
}

const everything = "everything: masks, session's network and directories, filter, limits";
const again = "everything, the control";
const waited = "the same in a sandbox that waited";
const masked = "bubblewrap alone, with its namespaces and 4 hidden files";

type Start = () => Promise<unknown>;
/** A start with its preparation, which is not measured. */
type PreparedStart = { prepare: () => Promise<Start> };

function startsOf({ closed, proxied, workspace }: { closed: Sandbox; proxied: Sandbox; workspace: string }) {
  const bare = { agent: "build", cwd: workspace, workspace, directories: [] };
  return {
    "spawn, without a sandbox": () => run(["/bin/bash", "-c", "true"], []),
    "bubblewrap alone, with one mount": () => run(["bwrap", "--ro-bind", "/", "/", "/bin/bash", "-c", "true"], []),
    [masked]: () => run(["bwrap", ...maskedMounts(workspace), "/bin/bash", "-c", "true"], []),
    "plan of the mounts alone, nothing is started": () => closed.hiddenFrom(masksOf(bare)),
    "sandbox without rules about files": () => confinedRun(closed, bare),
    "sandbox with 4 hidden files": () => confinedRun(closed, masksOf(bare)),
    [everything]: () => confinedRun(proxied, { ...masksOf(bare), ...sessionOf("ses_bench") }),
    [again]: () => confinedRun(proxied, { ...masksOf(bare), ...sessionOf("ses_bench") }),
    [waited]: { prepare: () => waitingRun(proxied, { ...masksOf(bare), ...sessionOf("ses_bench") }) },
  } satisfies Record<string, Start | PreparedStart>;
}

const masksOf = (place: SandboxPlace): SandboxPlace => ({
  ...place,
  files: { rules: judgeBy({}).fileRules(), read: [], edit: [] },
});

const sessionOf = (session: string): Pick<SandboxPlace, "session" | "network"> => ({
  session,
  network: {
    name: session,
    judge: () => ({ action: "deny", reason: "nothing is reached" }),
    refused: () => {},
    used: () => {},
    unavailable(reason) {
      throw new Error(reason);
    },
  },
});

/** The namespaces of a sandbox, and mounts over the files that its rules hide. */
function maskedMounts(workspace: string): string[] {
  const masks = hiddenFiles.flatMap((file) => ["--ro-bind", "/dev/null", join(workspace, file)]);
  return ["--unshare-all", "--dev-bind", "/", "/", "--proc", "/proc", "--bind", workspace, workspace, ...masks];
}

/** Runs each start once in a round, in turn; the first two rounds are not counted. */
async function measureStarts(starts: Readonly<Record<string, Start | PreparedStart>>, rounds: number) {
  const times = new Map<string, number[]>(Object.keys(starts).map((name) => [name, []]));
  for (let round = -2; round < rounds; round += 1)
    for (const [name, start] of Object.entries(starts)) {
      const ms = await timed("prepare" in start ? await start.prepare() : start);
      if (round >= 0) times.get(name)?.push(ms);
    }
  return times;
}

/** Measures the first commands of sessions, which open their networks, beside the second ones. */
async function measureFirst(sandbox: Sandbox, workspace: string, rounds: number): Promise<string> {
  const [first, second]: [number[], number[]] = [[], []];
  const bare = masksOf({ agent: "build", cwd: workspace, workspace, directories: [] });
  for (let round = 0; round < rounds; round += 1) {
    const place = { ...bare, ...sessionOf(`ses_first${round}`) };
    first.push(await timed(() => confinedRun(sandbox, place)));
    second.push(await timed(() => confinedRun(sandbox, place)));
  }
  return table(
    ["ms", "median (min–max)"],
    [
      ["first command of a session", spread(first, 1)],
      ["second command", spread(second, 1)],
    ],
  );
}

/** Measures the plan of mounts, of which the index is nearly all: for a new workspace, and for one that is known. */
async function measureIndex(folder: string, sizes: readonly number[], rounds: number): Promise<string> {
  const planner = createMountPlanner();
  const rows: string[][] = [];
  for (const files of sizes) {
    const root = { absolute: treeOf(folder, files), pattern: ".", isWritable: true };
    const request = {
      ...{ rules: judgeBy({}).fileRules(), roots: [root], allowed: { read: [], edit: [] }, editTrees: [], hidden: [] },
      ...{ placeholders: [], maxMasks: 100 },
    };
    const firstMs = await timed(() => planner.plan(request));
    // Until the kernel's stamps of the new directories are settled, they are read again.
    await planner.plan(request);
    const known: number[] = [];
    for (let round = 0; round < rounds; round += 1) known.push(await timed(() => planner.plan(request)));
    rows.push([count(files), firstMs.toFixed(0), spread(known, 1)]);
  }
  return table(["index of names: files, ten in a directory", "first time, ms", "known, ms"], rows);
}

function treeOf(folder: string, files: number): string {
  const directory = join(folder, `workspace-${files}`);
  mkdirSync(directory, { recursive: true });
  makeTree(directory, files);
  return directory;
}

async function confinedRun(sandbox: Sandbox, place: SandboxPlace): Promise<void> {
  const { argv, descriptors, env, release } = await sandbox.confine(["/bin/bash", "-c", "true"], place);
  await run(argv, descriptors, env);
  await release();
}

/** Makes a sandbox that waits; returns the start of a command in it. */
async function waitingRun(sandbox: Sandbox, place: SandboxPlace): Promise<Start> {
  const env = { PATH: process.env.PATH ?? "" };
  const spare = await sandbox.prepare(place, env);
  if (spare === undefined) throw new Error("no sandbox waits");
  const ended = run(spare.argv, spare.descriptors, spare.env);
  await Promise.race([spare.ready, ended]);
  return async () => {
    const { begin, release } = await sandbox.confine(["/bin/bash", "-c", "true"], place, spare);
    if (begin === undefined) throw new Error("the sandbox that waited is not that of the command");
    begin({ ...env, ...spare.env });
    await ended;
    await release();
    await spare.end();
  };
}

async function run(
  [program, ...args]: readonly [string, ...string[]],
  descriptors: readonly (number | "pipe")[],
  env = {},
) {
  const stdio = ["ignore", "ignore", "inherit", ...descriptors] as const;
  const child = spawn(program, args, { stdio: [...stdio], env: { PATH: process.env.PATH, ...env } });
  const [code] = await once(child, "exit");
  if (code !== 0) throw new Error(`${program} ended with ${code}`);
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const before = performance.now();
  await work();
  return performance.now() - before;
}

const count = (number: number) => number.toLocaleString("en");
