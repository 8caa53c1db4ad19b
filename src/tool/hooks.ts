import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { HookFailure } from "./errors.ts";

/** The call that a hook is about, in the words of opencode's plugins. */
export interface HookedCall {
  tool: string;
  sessionID: string;
  callID: string;
}

/** What each hook is told, and what it may change in place. */
export interface HookTypes {
  /** Before a tool is listed: what a model is told of it. The tool's own schema still decides what it accepts. */
  "tool.definition": {
    input: { toolID: string };
    output: { description: string; parameters: JsonObject };
  };
  /** Before a call is decoded and planned: `args` may be changed or replaced; people are asked about the result. */
  "tool.execute.before": { input: HookedCall; output: { args: JsonObject } };
  /** Before a person is asked: `allow` and `deny` spare them. It is not asked about what rules allow or deny. */
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
  /** After the body, and after its output was bounded: of a call that failed `output` is the error. */
  "tool.execute.after": {
    input: HookedCall & { args: JsonObject; status: "completed" | "error" };
    output: { title: string; output: string; metadata: JsonObject };
  };
  /** Before a command is planned: variables to add to its environment. */
  "shell.env": {
    input: { cwd: string; sessionID: string; callID: string };
    output: { env: Record<string, string> };
  };
}

/** The name of a hook. */
export type HookName = keyof HookTypes;

/** The hooks of one plugin. */
export type Hooks = {
  [Name in HookName]?: (input: HookTypes[Name]["input"], output: HookTypes[Name]["output"]) => Promise<void> | void;
};

/** All plugins' hooks. Each runs after the one before it, on what that one left; one that fails stops the call. */
export interface HookChain {
  /** Adds a plugin's hooks, and returns the function that removes them. */
  add(plugin: string, hooks: Hooks): () => void;
  has(...names: HookName[]): boolean;
  /** Runs the hooks of a name and returns the output as they left it. Throws `HookFailure`. */
  run<Name extends HookName>(
    name: Name,
    input: HookTypes[Name]["input"],
    output: HookTypes[Name]["output"],
  ): Promise<HookTypes[Name]["output"]>;
}

/** Makes a chain without hooks; each hook gets `timeoutMs`. */
export function createHooks({ timeoutMs = 10_000 }: { timeoutMs?: number } = {}): HookChain {
  let plugins: readonly { name: string; hooks: Hooks }[] = [];
  return {
    add(name, hooks) {
      // A copy, so that what becomes of the plugin's object later changes nothing.
      const plugin = { name, hooks: { ...hooks } };
      plugins = [...plugins, plugin];
      return () => {
        plugins = plugins.filter((other) => other !== plugin);
      };
    },
    has: (...names) => plugins.some(({ hooks }) => names.some((name) => hooks[name] !== undefined)),
    async run(name, input, output) {
      for (const { name: plugin, hooks } of plugins) {
        const hook = hooks[name];
        if (hook === undefined) continue;
        const problem = await within(timeoutMs, async () => {
          await hook(input, output);
          return outputProblem(name, output);
        });
        if (problem) throw new HookFailure(name, plugin, problem.why, { cause: problem.cause });
      }
      // As JSON: what a plugin goes on to do with its objects changes nothing.
      return JSON.parse(JSON.stringify(output));
    },
  };
}

interface Problem {
  why: string;
  cause?: unknown;
}

/** Why a hook's work cannot be used, if it cannot. */
async function within(ms: number, work: () => Promise<string | undefined>): Promise<Problem | undefined> {
  const late = Promise.withResolvers<Problem>();
  const timer = setTimeout(() => late.resolve({ why: `it did not end within ${ms} ms` }), ms);
  const done = work().then(
    (why) => why && { why },
    (cause: unknown) => ({ why: cause instanceof Error ? cause.message : String(cause), cause }),
  );
  const problem = await Promise.race([done, late.promise]);
  clearTimeout(timer);
  return problem || undefined;
}

/** What a hook left that is not what it may leave. */
function outputProblem(name: HookName, output: object): string | undefined {
  const wrong = Object.entries(shapes[name]).find(([field, fits]) => !fits(Reflect.get(output, field)));
  return wrong && `it left ${wrong[0]} as something that cannot be used`;
}

const isText = (value: unknown) => typeof value === "string";
const isJson = (value: unknown): value is JsonValue => {
  if (value === null || typeof value === "string" || typeof value === "boolean") return true;
  if (typeof value === "number") return Number.isFinite(value);
  if (Array.isArray(value)) return value.every(isJson);
  // What is undefined is left out, as JSON.stringify does.
  return isPlain(value) && Object.values(value).every((part) => part === undefined || isJson(part));
};
const isPlain = (value: unknown): value is object =>
  typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;
const isRecord = (value: unknown) => isPlain(value) && isJson(value);

const shapes: Record<HookName, Record<string, (value: unknown) => boolean>> = {
  "tool.definition": { description: isText, parameters: isRecord },
  "tool.execute.before": { args: isRecord },
  "permission.ask": { status: (value) => value === "ask" || value === "allow" || value === "deny" },
  // What a model is shown stays bounded, whatever is added to it.
  "tool.execute.after": {
    title: isText,
    output: (value) => typeof value === "string" && value.length <= 262_144,
    metadata: isRecord,
  },
  "shell.env": { env: (value) => isPlain(value) && Object.values(value).every(isText) },
};
