import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { basename, extname } from "node:path";
import { create, type JsonObject } from "@bufbuild/protobuf";
import {
  type WorkerFile,
  WorkerFileKind,
  type WorkerLoad,
  type WorkerProblem,
  type WorkerProject,
  WorkerProjectSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { within } from "../../core/within.ts";
import { type ExportedTool, exportedTool } from "../../tool/foreign.ts";
import { isHookName } from "../../tool/hooks.ts";
import { type LoadProblem, problemOf } from "./load-problem.ts";
import type { ModuleLoader } from "./loaded-files.ts";

/** The code of the process, as it is until the process ends. */
export interface LoadedCode {
  readonly project: WorkerProject;
  readonly tools: ReadonlyMap<string, ServedTool>;
  readonly plugins: readonly ServedPlugin[];
  readonly files: readonly Pick<WorkerFile, "path" | "sha256">[];
  readonly problems: readonly Omit<WorkerProblem, "$typeName">[];
}

/** Time that the module of a file may take to load. */
const loadMs = 10_000;

/** Imports the files; one that cannot be loaded becomes a problem and affects no other. */
export async function loadCode(load: WorkerLoad): Promise<LoadedCode> {
  const loader = await createModuleLoader(load);
  const project = load.project ?? create(WorkerProjectSchema);
  const tools = new Map<string, ServedTool>();
  const plugins: ServedPlugin[] = [];
  const problems: Omit<WorkerProblem, "$typeName">[] = [];
  // Together: the time that one wastes is not added to that of others.
  const loads = load.files.map((file) => within(loadMs, loader.load(file)));
  for (const [index, file] of load.files.entries()) {
    try {
      const exports = (await Promise.allSettled(loads))[index];
      if (exports?.status !== "fulfilled") throw exports?.reason;
      const source = loader.digestOf(file);
      const found =
        load.kind === WorkerFileKind.PLUGIN
          ? await readPluginFile(file, exports.value, { project, source })
          : await toolsOf(loader, file, exports.value);
      checkTools(tools, found.tools);
      for (const served of found.tools) tools.set(served.tool.name, served);
      plugins.push(...found.plugins);
      problems.push(...found.problems.map((problem) => ({ ...problem, file: "" })));
    } catch (error) {
      problems.push({ ...problemOf(file, error), file });
    }
  }
  return { project, tools, plugins, files: loader.files(), problems };
}

/** Returns the tools of a file: its default export is named like the file, others `file_export`. Ignores exports of other kinds. */
async function toolsOf(
  loader: ModuleLoader,
  file: string,
  exports: Readonly<Record<string, unknown>>,
): Promise<PluginFile> {
  const source = loader.digestOf(file);
  const name = basename(file, extname(file));
  const tools = await Promise.all(
    Object.entries(exports).map(([key, value]) => exportedTool(key === "default" ? name : `${name}_${key}`, value)),
  );
  const found = tools.flatMap((tool) => (tool ? { ...tool, source, file } : []));
  // A file beside tools may hold what several of them share.
  if (found.length > 0 || loader.isImported(file)) return { tools: found, plugins: [], problems: [] };
  throw new Error("it exports no tool: write, for example, export default Tool.define({ description, args, execute })");
}

const maxDescriptionLength = 16_384;

/** Throws if a tool has the name of another one, or cannot be declared. */
function checkTools(tools: ReadonlyMap<string, ServedTool>, found: readonly ServedTool[]): void {
  const names = new Set(tools.keys());
  for (const { tool } of found) {
    if (names.has(tool.name)) throw new Error(`there is another tool ${tool.name}: rename one of them`);
    names.add(tool.name);
    const { length } = tool.definition.description;
    if (length > maxDescriptionLength)
      throw new Error(
        `the description of ${tool.name} has ${length} characters, at most ${maxDescriptionLength} are allowed`,
      );
  }
}

/** Creates the loader of the runtime; the libraries of the other one are not loaded. */
async function createModuleLoader({ files, expected }: WorkerLoad): Promise<ModuleLoader> {
  const hashes = new Map(Object.entries(expected));
  if (process.versions.bun !== undefined) return (await import("./bun-loader.ts")).createBunLoader(files, hashes);
  return (await import("./node-loader.ts")).createNodeLoader(files, hashes);
}

/** A plugin with the hooks that Toolgate runs, by name. */
interface ServedPlugin {
  readonly name: string;
  readonly hooks: Readonly<Record<string, (input: JsonObject, output: JsonObject) => unknown>>;
}

/** Tools and hooks of a plugin file. */
interface PluginFile {
  plugins: ServedPlugin[];
  tools: ServedTool[];
  /** Parts of it that have no effect. */
  problems: LoadProblem[];
}

/** Time that the function of a plugin may take. */
const makeMs = 10_000;

/**
 * Reads the exports of a file: plugins of `definePlugin`, or functions that return hooks and tools, as in opencode. Throws if it
 * exports none, since it may be meant to guard calls; a file without any code guards nothing.
 */
async function readPluginFile(
  path: string,
  exports: Readonly<Record<string, unknown>>,
  { project, source }: { project: WorkerProject; source: string },
): Promise<PluginFile> {
  const found: PluginFile = { plugins: [], tools: [], problems: [] };
  // As in opencode: of a file whose default export has a server, nothing else is a plugin.
  const isModule = typeof exports.default === "object" && exports.default !== null && "server" in exports.default;
  for (const exported of isModule ? [exports.default] : new Set(Object.values(exports))) {
    const made = await makePlugin(exported, project);
    if (typeof made === "object" && made !== null) await addPlugin(found, path, made, source);
  }
  if (found.plugins.length > 0) return found;
  if (hasCode(path))
    throw new Error("it exports no plugin: write, for example, export default definePlugin({ name, ... })");
  found.problems.push({ path, line: 0, reason: "it has no code, only comments: nothing of it is run" });
  return found;
}

/** Calls the function of a plugin; other exports are returned as they are. */
async function makePlugin(exported: unknown, project: WorkerProject): Promise<unknown> {
  const make = typeof exported === "object" && exported !== null && "server" in exported ? exported.server : exported;
  return typeof make === "function" ? await within(makeMs, Promise.resolve(make(pluginInput(project), {}))) : exported;
}

async function addPlugin(found: PluginFile, path: string, made: object, source: string): Promise<void> {
  const name = "name" in made && typeof made.name === "string" ? made.name : basename(path, extname(path));
  const hooks: Record<string, ServedPlugin["hooks"][string]> = {};
  const report = (reason: string) => found.problems.push({ path, line: 0, reason });
  for (const [key, value] of Object.entries(made)) {
    if (typeof value === "function" && isHookName(key)) hooks[key] = (input, output) => value.call(made, input, output);
    else if (typeof value === "function") report(`the hook ${key} is unknown to Toolgate: it is never run`);
    else if (key !== "name" && key !== "tool") report(`the part ${key} is unknown to Toolgate: it has no effect`);
  }
  found.plugins.push({ name, hooks });
  for (const [key, value] of Object.entries("tool" in made ? Object(made.tool) : {})) {
    const tool = await exportedTool(key, value);
    if (!tool) throw new Error(`its tool ${key} is not a tool: write { description, args, execute }`);
    found.tools.push({ ...tool, source, file: path });
  }
}

function hasCode(path: string): boolean {
  return (
    readFileSync(path, "utf8")
      .replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "")
      .trim() !== ""
  );
}

/** Argument of a plugin that is a function, with the field names of opencode. */
interface PluginArgument {
  directory: string;
  worktree: string;
  project: { id: string; worktree: string; vcs?: "git"; time: { created: number } };
  client: object;
  serverUrl: URL;
  $: unknown;
}

/** Makes the argument of a plugin. */
function pluginInput({ directory, worktree, id }: WorkerProject): PluginArgument {
  return {
    ...{ directory, worktree },
    project: { id, worktree, time: { created: Date.now() } },
    client: clientPart(["client"]),
    // No opencode server exists; requests to this address fail at once.
    serverUrl: new URL("http://opencode.invalid"),
    $: shellOf(),
  };
}

/** Bun has the shell of the same name; Node gets the part of it that plugins use. */
function shellOf(): unknown {
  const bun: unknown = Reflect.get(globalThis, "Bun");
  return typeof bun === "object" && bun !== null ? Reflect.get(bun, "$") : createShell();
}

/** Methods of opencode's client that mean something here: what they show goes to the log. */
const logged: Readonly<Record<string, true>> = {
  "client.app.log": true,
  "client.tui.showToast": true,
};

/** Returns a part of opencode's client. A call of any method that means nothing here is refused by name. */
function clientPart(path: readonly string[]): object {
  const name = path.join(".");
  return new Proxy(() => undefined, {
    // Promises and inspection look for these.
    get: (_target, key) =>
      typeof key === "symbol" || key === "then" || key === "toJSON" ? undefined : clientPart([...path, key]),
    async apply(_target, _this, [request]: unknown[]) {
      if (!logged[name])
        throw new Error(
          `${name}() of opencode is not available in Toolgate: there is no opencode server behind a plugin`,
        );
      console.error(`${name}: ${logLine(request)}`);
      return { data: true, error: undefined };
    },
  });
}

/** Returns what a request to the log shows, in one line. */
function logLine(request: unknown): string {
  const body: unknown = typeof request === "object" && request !== null && "body" in request ? request.body : request;
  return JSON.stringify(body) ?? "";
}

/** The outcome of a command, with the names of Bun's shell. */
class ShellOutput {
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly exitCode: number;
  constructor(stdout: Buffer, stderr: Buffer, exitCode: number) {
    this.stdout = stdout;
    this.stderr = stderr;
    this.exitCode = exitCode;
  }
  text = () => this.stdout.toString();
  json = (): unknown => JSON.parse(this.text());
  bytes = () => new Uint8Array(this.stdout);
  arrayBuffer = () => this.bytes().buffer;
  blob = () => new Blob([this.bytes()]);
}

/** A command that ended with another exit code than 0. */
class ShellError extends Error {
  override name = "ShellError";
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly exitCode: number;
  constructor(command: string, { stdout, stderr, exitCode }: ShellOutput) {
    super(`Failed with exit code ${exitCode}: ${command}\n${stderr.toString().slice(0, 2_000)}`.trim());
    this.stdout = stdout;
    this.stderr = stderr;
    this.exitCode = exitCode;
  }
}

interface ShellOptions {
  cwd?: string | undefined;
  env?: Readonly<Record<string, string | undefined>> | undefined;
  throws: boolean;
}

/** A command that starts when it is awaited, or in the next turn. */
class ShellPromise implements PromiseLike<ShellOutput> {
  readonly #command: string;
  readonly #options: ShellOptions;
  #running: Promise<ShellOutput> | undefined;
  constructor(command: string, options: ShellOptions) {
    this.#command = command;
    this.#options = { ...options };
  }
  cwd(directory: string) {
    this.#options.cwd = directory;
    return this;
  }
  env(variables: ShellOptions["env"]) {
    this.#options.env = variables;
    return this;
  }
  /** Output is never echoed here. */
  quiet() {
    return this;
  }
  nothrow() {
    return this.throws(false);
  }
  throws(isThrown: boolean) {
    this.#options.throws = isThrown;
    return this;
  }
  run() {
    this.#running ??= runCommand(this.#command, this.#options);
    return this.#running;
  }
  text = async () => (await this.run()).text();
  json = async () => (await this.run()).json();
  bytes = async () => (await this.run()).bytes();
  arrayBuffer = async () => (await this.run()).arrayBuffer();
  blob = async () => (await this.run()).blob();
  async *lines() {
    yield* (await this.text()).split("\n");
  }
  // biome-ignore lint/suspicious/noThenProperty: Bun's shell returns a promise, which starts its command only when awaited
  then: Promise<ShellOutput>["then"] = (resolved, rejected) => this.run().then(resolved, rejected);
  catch: Promise<ShellOutput>["catch"] = (rejected) => this.run().catch(rejected);
  finally: Promise<ShellOutput>["finally"] = (ended) => this.run().finally(ended);
}

/**
 * Creates the part of Bun's shell `$` that plugins use: commands with escaped values, run by sh, with `cwd`, `env`, `quiet`,
 * `nothrow`, `text`, `json`, `lines`, `bytes`. Redirects to objects of the program, and `$.Shell`, need Bun.
 */
function createShell() {
  const defaults: ShellOptions = { throws: true };
  const shell = (strings: TemplateStringsArray, ...values: unknown[]) =>
    new ShellPromise(
      strings.raw.reduce((line, text, index) => line + escapeValue(values[index - 1]) + text),
      defaults,
    );
  return Object.assign(shell, {
    escape: escapeText,
    cwd: (directory?: string) => Object.assign(defaults, { cwd: directory }) && shell,
    env: (variables?: ShellOptions["env"]) => Object.assign(defaults, { env: variables }) && shell,
    nothrow: () => Object.assign(defaults, { throws: false }) && shell,
    throws: (isThrown: boolean) => Object.assign(defaults, { throws: isThrown }) && shell,
    ShellError,
    ShellPromise,
    ShellOutput,
  });
}

function escapeValue(value: unknown): string {
  if (Array.isArray(value)) return value.map(escapeValue).join(" ");
  if (typeof value === "object" && value !== null) {
    if ("raw" in value) return String(value.raw);
    if (!(value instanceof Date || value instanceof URL || value instanceof ShellOutput))
      throw new TypeError(
        "$ of a tool process takes texts, numbers, lists and { raw }: for files and streams it needs Bun",
      );
  }
  return escapeText(value instanceof ShellOutput ? value.text() : String(value));
}

/** Writes a text as one word of the shell. */
const escapeText = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

function runCommand(command: string, { cwd, env, throws }: ShellOptions): Promise<ShellOutput> {
  const { promise, resolve, reject } = Promise.withResolvers<ShellOutput>();
  const child = spawn("/bin/sh", ["-c", command], {
    stdio: ["ignore", "pipe", "pipe"],
    ...(cwd !== undefined && { cwd }),
    ...(env && { env }),
  });
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => void stdout.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => void stderr.push(chunk));
  child.on("error", reject);
  child.on("close", (code) => {
    const output = new ShellOutput(Buffer.concat(stdout), Buffer.concat(stderr), code ?? 128);
    if (throws && output.exitCode !== 0) reject(new ShellError(command, output));
    else resolve(output);
  });
  return promise;
}

/** A tool that the process serves. */
export interface ServedTool extends ExportedTool {
  /** Digest of its file and of all local files that it imports. */
  readonly source: string;
  /** The file of `load` that brings it. */
  readonly file: string;
}
