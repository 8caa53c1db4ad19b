import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { within } from "../core/within.ts";
import { HookFailure } from "./errors.ts";

/** The call of a hook, with the field names of opencode's plugins. */
export interface HookedCall {
  tool: string;
  sessionID: string;
  callID: string;
}

/** The input of each hook, and the output that it may change in place. */
export interface HookTypes {
  /** Runs before a tool is listed. Changes what models see; the tool's schema still decides what it accepts. */
  "tool.definition": {
    input: { toolID: string };
    output: { description: string; parameters: JsonObject };
  };
  /** Runs before a call is decoded and planned. `args` may be changed or replaced; approvers see the result. */
  "tool.execute.before": { input: HookedCall; output: { args: JsonObject } };
  /** Runs before an approver is asked; `allow` and `deny` answer instead. It does not run where rules allow or deny. */
  "permission.ask": {
    input: {
      id: string;
      type: string;
      pattern: string[];
      sessionID: string;
      messageID: string;
      callID: string;
      title: string;
      metadata: JsonObject;
      time: { created: number };
    };
    output: { status: "ask" | "allow" | "deny" };
  };
  /** Runs after the body and after truncation. `output` of a failed call is the error message. */
  "tool.execute.after": {
    input: HookedCall & { args: JsonObject; status: "completed" | "error" };
    output: { title: string; output: string; metadata: JsonObject };
  };
  /** Runs before a command is planned. `env` holds the variables to add to its environment. */
  "shell.env": {
    input: { cwd: string; sessionID: string; callID: string };
    output: { env: Record<string, string> };
  };
}

/** The name of a hook. */
export type HookName = keyof HookTypes;

/** Reports whether a plugin's function of this name is a hook that Toolgate runs. */
export const isHookName = (name: string): name is HookName => Object.hasOwn(shapes, name);

/** The hooks of one plugin. */
export type Hooks = {
  [Name in HookName]?: (input: HookTypes[Name]["input"], output: HookTypes[Name]["output"]) => Promise<void> | void;
};

/** The hooks that run in one workspace root, one after the other, each on the output of the one before; one that fails stops the call. */
export interface WorkspaceHooks {
  has(...names: HookName[]): boolean;
  /** Runs the hooks of a name and returns the changed output. Throws `HookFailure`. */
  run<Name extends HookName>(
    name: Name,
    input: HookTypes[Name]["input"],
    output: HookTypes[Name]["output"],
  ): Promise<HookTypes[Name]["output"]>;
}

/** The hooks of all plugins. */
export interface HookChain {
  /**
   * Adds a plugin's hooks, for one workspace root or for all, and returns the function that removes them. Those of a lower rank
   * run first, of one rank those that were added first.
   */
  add(plugin: string, hooks: Hooks, workspace?: string, rank?: number): () => void;
  /** Reports whether there is a hook of one of these names for any workspace root. */
  has(...names: HookName[]): boolean;
  /** Returns the hooks of a workspace root, always as they are now. */
  in(workspace: string): WorkspaceHooks;
}

/** The hooks of one plugin. */
interface PluginHooks {
  readonly name: string;
  readonly hooks: Hooks;
  /** The workspace root; undefined: all. */
  readonly workspace: string | undefined;
  readonly rank: number;
}

/** Creates a chain without hooks; each hook may take `timeoutMs`. */
export function createHooks({ timeoutMs = 10_000 }: { timeoutMs?: number } = {}): HookChain {
  let plugins: readonly PluginHooks[] = [];
  const hasHook = ({ hooks }: PluginHooks, wanted: readonly HookName[]) =>
    wanted.some((name) => hooks[name] !== undefined);
  return {
    add(name, hooks, workspace, rank = 0) {
      // A copy, so that later changes of the plugin's object have no effect.
      const plugin = { name, hooks: { ...hooks }, workspace, rank };
      plugins = [...plugins, plugin].sort((one, other) => one.rank - other.rank);
      return () => {
        plugins = plugins.filter((other) => other !== plugin);
      };
    },
    has: (...wanted) => plugins.some((plugin) => hasHook(plugin, wanted)),
    in(root) {
      const serving = () => plugins.filter(({ workspace = root }) => workspace === root);
      return {
        has: (...wanted) => serving().some((plugin) => hasHook(plugin, wanted)),
        run: (name, input, output) => runHooks(serving(), name, input, output, timeoutMs),
      };
    },
  };
}

async function runHooks<Name extends HookName>(
  plugins: readonly PluginHooks[],
  name: Name,
  input: HookTypes[Name]["input"],
  output: HookTypes[Name]["output"],
  timeoutMs: number,
): Promise<HookTypes[Name]["output"]> {
  for (const { name: plugin, hooks } of plugins) {
    const hook = hooks[name];
    if (hook === undefined) continue;
    const problem = await problemWithin(timeoutMs, async () => {
      await hook(input, output);
      return outputProblem(name, output);
    });
    if (problem) throw new HookFailure(name, plugin, problem.why, { cause: problem.cause });
  }
  // A JSON copy, so that later changes of the plugin's objects have no effect.
  return JSON.parse(JSON.stringify(output));
}

interface Problem {
  why: string;
  cause?: unknown;
}

/** Runs a hook with a time limit; returns the problem if it fails, takes too long or leaves an unusable output. */
async function problemWithin(ms: number, work: () => Promise<string | undefined>): Promise<Problem | undefined> {
  const done = work().then(
    (why) => why && { why },
    (cause: unknown) => ({ why: cause instanceof Error ? cause.message : String(cause), cause }),
  );
  return (await within(ms, done, () => ({ why: `it did not end within ${ms} ms` }))) || undefined;
}

/** Finds the first field of a hook's output that is unusable. */
function outputProblem(name: HookName, output: object): string | undefined {
  const wrong = Object.entries(shapes[name]).find(([field, fits]) => !fits(Reflect.get(output, field)));
  return wrong && `it left an unusable value in ${wrong[0]}`;
}

const isText = (value: unknown) => typeof value === "string";
const isJson = (value: unknown): value is JsonValue => {
  if (value === null || typeof value === "string" || typeof value === "boolean") return true;
  if (typeof value === "number") return Number.isFinite(value);
  if (Array.isArray(value)) return value.every(isJson);
  // JSON.stringify omits undefined values, too.
  return isPlain(value) && Object.values(value).every((part) => part === undefined || isJson(part));
};
const isPlain = (value: unknown): value is object =>
  typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;
const isRecord = (value: unknown) => isPlain(value) && isJson(value);

const shapes: Record<HookName, Record<string, (value: unknown) => boolean>> = {
  "tool.definition": { description: isText, parameters: isRecord },
  "tool.execute.before": { args: isRecord },
  "permission.ask": { status: (value) => value === "ask" || value === "allow" || value === "deny" },
  // Output stays bounded for the model, whatever a hook adds.
  "tool.execute.after": {
    title: isText,
    output: (value) => typeof value === "string" && value.length <= 262_144,
    metadata: isRecord,
  },
  "shell.env": { env: (value) => isPlain(value) && Object.values(value).every(isText) },
};
