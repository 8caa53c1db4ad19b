import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import {
  SourceAcceptance,
  SourceKind,
  type SourceSchema,
  SourceState,
} from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import {
  WorkerFileKind,
  type WorkerHello,
  type WorkerPlugin,
  type WorkerProjectSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { visible } from "../../core/visible.ts";
import { type HookChain, type Hooks, isHookName } from "../../tool/hooks.ts";
import { byName, type Registry } from "../../tool/registry.ts";
import type { Tool } from "../../tool/tool.ts";
import { type WorkerHost, workerTool } from "../worker-tool.ts";
import type { Problem } from "./problem.ts";
import {
  createToolProcess,
  hashesOf,
  type ToolProcess,
  type ToolProcessPlace,
  type ToolProcessStarter,
} from "./tool-process.ts";
import { hashFiles } from "./trust.ts";

/** The parts that load files in processes and register what they bring. */
export interface ProcessParts {
  registry: Registry;
  hooks: HookChain;
  starter: ToolProcessStarter;
}

/** The files that a source loads. */
export interface FilesToLoad {
  /** Absolute paths of tool files or plugins. */
  readonly files: readonly string[];
  /** The SHA-256 of each file of code that is known, by path: a change of one loads all again. */
  readonly hashes: ReadonlyMap<string, string>;
  /** The SHA-256 that files must have to be loaded, by canonical path. */
  readonly expected?: ReadonlyMap<string, string>;
}

/** A process that loaded one version. */
interface Generation {
  readonly process: ToolProcess;
  readonly hello: WorkerHello;
}

/** The tools that serve for a file. */
interface Served {
  readonly generation: Generation;
  readonly tools: readonly Tool[];
}

interface State {
  readonly place: ToolProcessPlace;
  readonly kind: WorkerFileKind;
  /** Of tools with one name in a workspace those of the highest rank serve; hooks run by rank. */
  readonly rank: number;
  /** Calls run without a plugin that cannot be loaded. */
  readonly isOptional: boolean;
  readonly parts: ProcessParts;
  /** The SHA-256 of the files that were loaded last, or that could not be. */
  attempted: ReadonlyMap<string, string> | undefined;
  current: Generation | undefined;
  /** A process that could not load its files. */
  failed: ToolProcess | undefined;
  served: ReadonlyMap<string, Served>;
  problems: Problem[];
  /** True if the present version is not loaded. */
  isMissing: boolean;
  unregister(): void;
}

/** Creates the tools and hooks of one source in one workspace, with the processes that load them; nothing is loaded yet. */
export function createProcessSource(
  place: ToolProcessPlace,
  { kind, rank, isOptional = false }: { kind: WorkerFileKind; rank: number; isOptional?: boolean },
  parts: ProcessParts,
) {
  const state: State = {
    ...{ place, kind, rank, isOptional, parts },
    ...{ attempted: undefined, current: undefined, failed: undefined, served: new Map(), problems: [] },
    isMissing: false,
    unregister: () => {},
  };
  return {
    /** Loads these files if they or what they import has changed. */
    load: (wanted: FilesToLoad): Promise<void> => load(state, wanted),
    /** Removes all tools and hooks, and stops the processes. */
    unload: (): void => unload(state),
    /** Keeps running what was loaded, since it cannot be loaded again. */
    hold: (): void => holdServing(state),
    /** Paths of the files that were loaded. */
    loadedFiles: (): string[] => Object.keys(state.current ? hashesOf(state.current.hello) : {}),
    /** Reports whether a process that crashed or could not be loaded may be started again by now. */
    isDue: (): boolean => (state.failed ?? state.current?.process)?.isDue() ?? false,
    /** Problems of the files, and of a process that ended. */
    problems: (): Problem[] => [...state.problems, ...crashOf(state)],
    /** The problem because of which the present version is not loaded, or does not run although it should. */
    missing: (): Problem | undefined => (state.isMissing ? state.problems : crashOf(state))[0],
    /** Describes it for people; undefined if nothing was to be loaded. */
    describe: (): Promise<MessageInitShape<typeof SourceSchema> | undefined> => describe(state),
    async close(): Promise<void> {
      const processes = processesOf(state);
      unload(state);
      await Promise.all(processes.map((process) => process.close()));
    },
  };
}

const processesOf = ({ current, failed, served }: State) => [
  ...new Set(
    [...served.values()].map(({ generation }) => generation.process).concat(current?.process ?? [], failed ?? []),
  ),
];

function unload(state: State): void {
  state.unregister();
  for (const process of processesOf(state)) process.retire();
  Object.assign(state, { attempted: undefined, current: undefined, failed: undefined });
  Object.assign(state, { served: new Map(), problems: [], isMissing: false, unregister: () => {} });
}

/** Returns the problem of a process that crashed and does not run again. */
function crashOf({ current, place }: State): Problem[] {
  const reason = current?.process.state().problem ?? "";
  return reason === "" ? [] : [{ path: place.path, line: 0, reason: visible(reason) }];
}

async function load(state: State, { files, hashes, expected }: FilesToLoad): Promise<void> {
  const now = await presentHashes(state, hashes);
  const isSame = state.attempted !== undefined && areEqual(state.attempted, now);
  if (isSame && !state.failed) return await startAfterCrash(state);
  if (isSame && !state.failed?.isDue()) return;
  const { place, kind, parts } = state;
  const wanted = { files: [...files], kind, project: projectOf(place), expected: Object.fromEntries(expected ?? []) };
  const process = (isSame ? state.failed : undefined) ?? createToolProcess(place, wanted, parts.starter);
  if (process !== state.failed) state.failed?.retire();
  Object.assign(state, { failed: process, attempted: now });
  try {
    const hello = await process.hello();
    state.attempted = new Map([...now, ...Object.entries(hashesOf(hello))]);
    state.failed = undefined;
    replace(state, files, process, hello);
    state.isMissing = false;
  } catch (error) {
    holdServing(state);
    if (!state.failed) process.retire();
    state.isMissing = true;
    const problems =
      error instanceof LoadFailure ? error.problems : [{ path: place.path, line: 0, reason: textOf(error) }];
    state.problems = problems.map((problem) => (state.served.size > 0 ? withFormer(problem) : problem));
  }
}

/** Starts a process that crashed again, if that may be by now. */
async function startAfterCrash({ current }: State): Promise<void> {
  if (current?.process.isDue()) await current.process.hello().catch(() => undefined);
}

/** Returns the SHA-256 of the known files, and of those that were attempted before, as they are now. */
async function presentHashes(
  { attempted = new Map() }: State,
  hashes: ReadonlyMap<string, string>,
): Promise<Map<string, string>> {
  const others = [...attempted.keys()].filter((path) => !hashes.has(path));
  return new Map([...hashes, ...(await hashFiles(others))]);
}

function areEqual(one: ReadonlyMap<string, string>, other: ReadonlyMap<string, string>): boolean {
  return one.size === other.size && [...one].every(([path, hash]) => other.get(path) === hash);
}

/** The files of a source were not loaded, and nothing of them serves. */
class LoadFailure extends Error {
  readonly problems: Problem[];
  constructor(problems: Problem[]) {
    super("files were not loaded");
    this.problems = problems;
  }
}

/** Registers what a process brings in place of what served before. Tool files that it could not load are served by the process before. */
function replace(state: State, files: readonly string[], process: ToolProcess, hello: WorkerHello): void {
  const { place, parts, rank, kind, isOptional } = state;
  const { tools, problems } = madeTools(process, hello, place.path);
  const failed = new Set(problems.flatMap(({ file }) => file || []));
  // A guard that is not loaded denies calls, and what served before goes on; where plugins are optional, the others are loaded.
  if (kind === WorkerFileKind.PLUGIN && failed.size > 0 && !(isOptional && state.current === undefined))
    throw new LoadFailure(problems.map(shownProblem));
  const generation: Generation = { process, hello };
  const served = new Map<string, Served>();
  for (const file of [...files, place.path]) {
    const before = failed.has(file) ? state.served.get(file) : undefined;
    const own = tools.get(file);
    if (before) served.set(file, before);
    else if (own) served.set(file, { generation, tools: own });
  }
  const { name: workspace } = place.workspace;
  const closers = [
    parts.registry.register(byName([...served.values()].flatMap((each) => each.tools)), workspace, rank),
    ...hello.plugins.map((plugin, index) =>
      parts.hooks.add(plugin.name, workerHooks(plugin, index, process), workspace, rank),
    ),
  ];
  state.unregister();
  const former = processesOf(state);
  const isFormer = (file: string) => served.has(file) && served.get(file)?.generation !== generation;
  state.problems = problems.map((problem) => {
    const shown = shownProblem(problem);
    return isFormer(problem.file) ? withFormer(shown) : shown;
  });
  Object.assign(state, { current: generation, served, unregister: () => closers.forEach((close) => void close()) });
  const serving = new Set([...served.values()].map((each) => each.generation.process));
  for (const each of former) if (!serving.has(each)) each.retire();
  for (const each of serving) if (each !== process) each.hold();
  if (!serving.has(process) && hello.plugins.length === 0) process.retire();
}

/** Makes the tools of each file. A file of which one cannot serve is not loaded. */
function madeTools(
  process: ToolProcess,
  hello: WorkerHello,
  path: string,
): { tools: Map<string, Tool[]>; problems: FileProblem[] } {
  const tools = new Map<string, Tool[]>();
  const problems: FileProblem[] = [...hello.problems];
  for (const declared of hello.tools) {
    const file = declared.file || path;
    try {
      tools.set(file, [...(tools.get(file) ?? []), workerTool(declared, process)]);
    } catch (error) {
      problems.push({ path: file, line: 0, reason: textOf(error), file });
    }
  }
  for (const { file } of problems) tools.delete(file);
  return { tools, problems };
}

/** A problem, and the file that is not loaded because of it; empty if all of it is. */
interface FileProblem extends Problem {
  readonly file: string;
}

const shownProblem = ({ path, line, reason }: Problem): Problem => ({ path, line, reason: visible(reason) });
const withFormer = (problem: Problem): Problem => ({
  ...problem,
  reason: `${problem.reason} (the version before it still serves)`,
});

function holdServing({ served }: State): void {
  for (const { generation } of served.values()) generation.process.hold();
}

function projectOf({ workspace: { directory, name } }: ToolProcessPlace): MessageInitShape<typeof WorkerProjectSchema> {
  return { directory, worktree: worktreeOf(directory), id: name };
}

/** Returns the root of the Git repository around a directory; without one, the directory itself. */
function worktreeOf(directory: string): string {
  for (let at = directory; ; at = dirname(at)) {
    if (existsSync(join(at, ".git"))) return at;
    if (at === dirname(at)) return directory;
  }
}

async function describe(state: State): Promise<MessageInitShape<typeof SourceSchema> | undefined> {
  const { place, current, failed, served, problems, parts } = state;
  const process = failed ?? current?.process;
  if (process === undefined) return undefined;
  const { state: present, since, restarts, runtime } = process.state();
  const named = [...problems, ...crashOf(state)].map(
    ({ path, line, reason }) => `${path}${line > 0 ? `:${line}` : ""}: ${reason}`,
  );
  return {
    kind: SourceKind.TOOL_PROCESS,
    ...{ name: place.path, workspace: place.workspace.name, origin: visible(runtime) },
    ...{ state: failed ? SourceState.WAITING : present, since, restarts, confinement: parts.starter.confinement },
    problem: named.join("; "),
    memoryBytes: BigInt(await process.memory()),
    files: [...served.keys()],
    tools: [...served.values()].flatMap(({ tools }) =>
      tools.map(({ name }) => ({ name, acceptance: SourceAcceptance.ACCEPTED })),
    ),
  };
}

const textOf = (error: unknown) => visible(error instanceof Error ? error.message : String(error));

/** Makes the hooks of a plugin that runs in a process, by its index there. A hook whose process does not answer fails. */
export function workerHooks({ hooks }: WorkerPlugin, index: number, { use }: Pick<WorkerHost, "use">): Hooks {
  const made: Hooks = {};
  for (const name of hooks.filter(isHookName)) {
    Object.assign(made, {
      [name]: async (input: object, output: object) => {
        const changed = await use((connection) => connection.hook(index, name, plain(input), plain(output)));
        for (const key of Object.keys(output)) Reflect.deleteProperty(output, key);
        Object.assign(output, changed);
      },
    });
  }
  return made;
}

/** Copies a value as JSON: messages hold nothing else. */
const plain = (value: object): JsonObject => JSON.parse(JSON.stringify(value));
