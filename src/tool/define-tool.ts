import { createHash } from "node:crypto";
import { create, type JsonValue } from "@bufbuild/protobuf";
import type * as z from "zod";
import { ToolDefinitionSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { type Decoded, inputCodec, outputCodec, type ValueSchema } from "./codec.ts";
import type { Attachment, ChangeForm, Plan, PlanContext, Tool, ToolContext, ToolResult } from "./tool.ts";

/** A piece of structured output as models see it. */
export type Content = { type: "text"; text: string } | ({ type: "media" } & Attachment);

/** The declaration of a tool; `defineTool` makes a `Tool` of it. */
export interface ToolConfig<Input extends ValueSchema, P extends Plan, Output extends z.ZodType> {
  /** `[A-Za-z][A-Za-z0-9_-]{0,63}`. */
  name: string;
  /** Shown to models. */
  description: string;
  input: Input;
  /** With it, `execute` returns a value that fits it instead of a `ToolResult`; a value that does not fit fails the call. */
  output?: Output;
  /** Raise it when behaviour changes but schemas do not: it changes `definition_id`. */
  version?: string;
  /** Raise it when earlier "always" approvals must no longer hold: earlier grants stop matching. */
  permissionVersion?: string;
  readOnly?: boolean;
  /** Running it twice has the effect of running it once: it may be run again after a crash. */
  idempotent?: boolean;
  destructive?: boolean;
  openWorld?: boolean;
  /**
   * Permissions that its calls can ask, without wildcards and without those of the engine (`external_directory`,
   * `doom_loop`); empty if they ask for none. An agent sees the tool unless all of them are denied to it. It grants nothing:
   * an ask of another permission is judged like any other. Default: anything, and the tool is listed by its own name.
   */
  permissions?: readonly string[];
  /** Set it on a tool that changes files: a model is offered the form that it was trained on. */
  changeForm?: ChangeForm;
  /** Providers whose models are offered the tool; default all. */
  providers?: readonly string[];
  /** Offers the tool only if the configuration names it under `experimental`. */
  experimental?: boolean;
  /** Part of a long output that the model sees: its head, its tail, or half of both. Default: head, 2,000 lines, 51,200 bytes. */
  keep?: { end?: "head" | "tail" | "both"; lines?: number; bytes?: number };
  /** Maximum duration of a run, unless the call or the plan sets one. */
  timeoutMs?: number;
  /** Default: asks for the permission named like the tool, with the whole input as its pattern. */
  plan?(input: Decoded<Input>, ctx: PlanContext): Promise<P> | P;
  execute(input: Decoded<Input>, ctx: ToolContext & { plan: P }): Promise<ReturnedBy<Output>> | ReturnedBy<Output>;
  /** Renders encoded output for the model; pure, and never throws. Default: its JSON, or a string as it is. */
  toModelOutput?(result: { input: Decoded<Input>; output: z.input<Output> }): readonly Content[];
}

/** The return type of `execute`: with an output schema, a value that fits it. */
export type ReturnedBy<Output extends z.ZodType> = [Output] extends [never] ? ToolResult : z.output<Output>;

/** Makes a tool. The tool runs only `config.execute`, and only with input that fits `config.input`. */
export function defineTool<const Input extends ValueSchema, P extends Plan = Plan, Output extends z.ZodType = never>(
  config: ToolConfig<Input, P, Output>,
): Tool {
  const { name, description, version = "1", permissionVersion = "1", timeoutMs, execute, toModelOutput } = config;
  const plan = config.plan ?? ((input) => wholeInput(name, input));
  if (!toolName.test(name)) {
    throw new Error(
      `"${name}" cannot be a tool's name: start with a letter, then use up to 63 letters, digits, "_" or "-"`,
    );
  }
  checkPermissions(config);
  const input = inputCodec(name, config.input);
  const output = config.output && outputCodec(name, config.output);
  const schemas = { input: input.schema, ...(output && { output: output.schema }) };
  const definition = create(ToolDefinitionSchema, {
    name,
    definitionId: sha256(canonicalJson({ name, ...schemas, version })).slice(0, 32),
    description,
    inputSchema: structuredClone(input.schema),
    ...(output && { outputSchema: structuredClone(output.schema) }),
    annotations: {
      readOnly: config.readOnly ?? false,
      idempotent: config.idempotent ?? false,
      destructive: config.destructive ?? false,
      openWorld: config.openWorld ?? false,
    },
  });
  return Object.freeze({
    name,
    definition: deepFreeze(definition),
    idempotent: config.idempotent ?? false,
    providers: config.providers && [...config.providers],
    experimental: config.experimental ?? false,
    permissions: config.permissions && Object.freeze([...config.permissions]),
    changeForm: config.changeForm,
    permissionBinding: sha256(canonicalJson({ input: input.schema, permissionVersion })).slice(0, 32),
    keep: { end: "head", lines: 2_000, bytes: 51_200, ...config.keep } as const,
    decode: input.decode,
    // The engine passes values that decode() and plan() of this same tool returned; their types were erased in between.
    async plan(value: unknown, ctx: PlanContext): Promise<Plan> {
      const planned = await plan(value as Decoded<Input>, ctx);
      return timeoutMs === undefined ? planned : { timeoutMs, ...planned };
    },
    async execute(value: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult> {
      const returned = await execute(value as Decoded<Input>, { ...ctx, plan: plan as P });
      if (!output) return returned as ToolResult;
      const structured = output.encode(returned);
      const shown = toModelOutput?.({ input: value as Decoded<Input>, output: structured as z.input<Output> });
      return { structured, ...contentsOf(shown ?? [textOf(structured)]) };
    },
  });
}

/** Throws if a tool declares what it cannot ask. */
function checkPermissions({
  name,
  permissions,
  plan,
}: Pick<ToolConfig<never, Plan, never>, "name" | "permissions" | "plan">) {
  const wrong = permissions?.find((permission) => permission === "" || /[*?]/.test(permission));
  if (wrong !== undefined) {
    throw new Error(`tool "${name}" declares the permission "${wrong}"; name each one, without wildcards`);
  }
  if (plan || permissions === undefined || permissions.includes(name)) return;
  throw new Error(`tool "${name}" has no plan, so it asks "${name}": add that to its permissions, or write a plan`);
}

/** Makes the default plan: one ask for the whole input. */
function wholeInput(name: string, input: unknown): Plan {
  const text = canonicalJson(
    JSON.parse(JSON.stringify(input, (_key, part) => (typeof part === "bigint" ? `${part}` : part))),
  );
  // Asks are shown and stored whole. A hash stands for the truncated part, so that the pattern still means this input alone.
  const pattern = text.length <= maxPatternLength ? text : `${text.slice(0, maxPatternLength)}… sha256:${sha256(text)}`;
  return { title: name, asks: [{ permission: name, patterns: [pattern], wholeCall: true }] };
}

const textOf = (output: JsonValue): Content => ({
  type: "text",
  text: typeof output === "string" ? output : JSON.stringify(output),
});

function contentsOf(shown: readonly Content[]): Pick<ToolResult, "output" | "attachments"> {
  return {
    output: shown.flatMap((content) => (content.type === "text" ? [content.text] : [])).join("\n"),
    attachments: shown.flatMap((content) => (content.type === "media" ? [content] : [])),
  };
}

function deepFreeze<T>(value: T): T {
  if (typeof value === "object" && value !== null) Object.values(Object.freeze(value)).forEach(deepFreeze);
  return value;
}

const maxPatternLength = 8_192;
const toolName = /^[A-Za-z][A-Za-z0-9_-]{0,63}$/;
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
