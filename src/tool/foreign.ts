import { stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import * as z from "zod";
import { isObject, plainJson } from "../core/json.ts";
import { within } from "../core/within.ts";
import { isZod, type ValueSchema } from "./codec.ts";
import { bindTool, declarationOf, defineTool, isTool, wholeInput } from "./define-tool.ts";
import { ToolFailure } from "./errors.ts";
import type { Attachment, DefinedTool, Plan, Tool, ToolContext, ToolResult } from "./tool.ts";

/** Context of a tool from a file or a plugin, with the field names of opencode. */
export interface ForeignContext {
  sessionID: string;
  messageID: string;
  callID: string;
  agent: string;
  /** The workspace of the session. */
  directory: string;
  /** Root of the repository around it; without one, the same directory. */
  worktree: string;
  abort: AbortSignal;
  model: { providerID: string; modelID: string };
  /** The caller's metadata for tools. */
  extra: JsonObject;
  /** Replaces the title and metadata that watchers see. Other keys, such as `progress`, are metadata, too. */
  metadata(input: { title?: string; metadata?: object; [key: string]: unknown }): void;
  /**
   * Asks for a permission; throws if it is refused, and the call ends. Wildcards of `always` that match the ask are offered to
   * approvers. An approver who approved the call itself is asked only where a rule asks.
   */
  ask(input: { permission: string; patterns: string[]; always?: string[]; metadata?: object }): Promise<void>;
}

/** Result of such a tool; the model reads another value as JSON. An attachment's `url` is a `data:` URL. */
export type ForeignResult =
  | string
  | number
  | boolean
  | readonly unknown[]
  | { output?: never; [key: string]: unknown }
  | {
      title?: string;
      output: string;
      metadata?: object;
      attachments?: { type?: "file"; mime: string; url: string; filename?: string }[];
    };

const foreign = z.object({
  description: z.string(),
  execute: z.custom<(args: unknown, ctx: ForeignContext) => unknown>((value) => typeof value === "function"),
  args: z.unknown().optional(),
  parameters: z.unknown().optional(),
});

const result = z.object({
  title: z.string().optional(),
  output: z.string(),
  metadata: z.unknown().optional(),
  attachments: z.array(z.object({ mime: z.string(), url: z.string(), filename: z.string().optional() })).optional(),
});

/** A tool that a file or a plugin exports. */
export interface ExportedTool {
  readonly tool: Tool;
  /** It has a form of opencode: an approval of a call covers what its body asks. */
  readonly isForeign: boolean;
  /** Makes the tool as it is for an agent; absent if it is the same for all. */
  forAgent?(agent: string): Promise<Tool>;
}

/**
 * Makes a tool of an export of a file or a plugin, see `exportedTool`. `source` identifies its code in its definition ID.
 */
export async function toolOf(name: string, exported: unknown, source: string): Promise<Tool | undefined> {
  const found = await exportedTool(name, exported);
  return found && bindTool(found.tool.name, found.tool, source);
}

/**
 * Makes a tool of an export: of `defineTool`, `Tool.define` in each of its forms, or opencode's `tool`. Returns undefined if the
 * export does not look like a tool.
 */
export async function exportedTool(name: string, exported: unknown): Promise<ExportedTool | undefined> {
  if (typeof exported !== "object" || exported === null) return undefined;
  if (isTool(exported)) return { tool: bindTool(declarationOf(exported).name ?? name, exported), isForeign: false };
  if ("init" in exported) return await initialisedTool(idOf(exported) ?? name, exported.init);
  if (!("execute" in exported)) return undefined;
  return { tool: bindTool(name, foreignTool(name, exported)), isForeign: true };
}

/** Makes a tool of `init`, which opencode calls for each agent. One that reads nothing of the agent makes the same for all. */
async function initialisedTool(name: string, init: unknown): Promise<ExportedTool | undefined> {
  if (typeof init !== "function") return await exportedTool(name, init);
  const made = async (ctx: { agent?: { name: string } }) =>
    await exportedTool(name, await within(10_000, Promise.resolve(init(ctx))));
  const tool = await made({});
  if (!tool || init.length === 0) return tool;
  return {
    ...tool,
    async forAgent(agent) {
      const found = await made({ agent: { name: agent } });
      if (found) return found.tool;
      throw new Error(
        `init of the tool ${name} returned no tool for the agent ${agent}: return { description, parameters, execute }`,
      );
    },
  };
}

/** Makes a tool of `{ description, args or parameters, execute }`. */
function foreignTool(name: string, exported: object): DefinedTool {
  const read = foreign.safeParse(exported);
  if (!read.success) {
    throw new Error(
      `${name} is not a tool: ${read.error.issues.map(({ path, message }) => `${path.join(".")}: ${message}`).join("; ")}`,
    );
  }
  const { description, args, parameters, execute } = read.data;
  return defineTool({
    name,
    description,
    input: inputOf(name, args ?? parameters),
    plan: (input) => planOf(name, input),
    // Either end may hold the important part.
    keep: { end: "both" },
    async execute(input, ctx) {
      const { context, isRefusal } = await contextOf(ctx);
      try {
        return resultOf(name, await execute.call(exported, input, context));
      } catch (cause) {
        // Such a tool has no other way to report a failure to the model. Refusals and aborts do not come from the tool.
        if (ctx.signal.aborted || isRefusal(cause) || !(cause instanceof Error)) throw cause;
        throw new ToolFailure(messageOf(cause), { cause });
      }
    },
  });
}

/** Longest end of what a command printed that is added to its error. */
const maxPrinted = 2_000;

/** Returns the message of an error, with what a command of Bun's shell printed about it. */
function messageOf(error: Error): string {
  const { message } = error;
  const stderr: unknown = Reflect.get(error, "stderr");
  const printed = stderr instanceof Uint8Array ? new TextDecoder().decode(stderr).trim().slice(-maxPrinted) : "";
  return printed === "" || message.includes(printed) ? message : `${message}: ${printed}`;
}

/** Plans a call that asks for its whole input. What its body asks is known only later: an approver is asked once. */
function planOf(name: string, input: unknown): Plan {
  const { title, asks } = wholeInput(name, input);
  return { title, asks: asks.map((ask) => ({ ...ask, coversBody: true, always: ["*"] })) };
}

function idOf(exported: object): string | undefined {
  return "id" in exported && typeof exported.id === "string" ? exported.id : undefined;
}

/** Returns the schema of arguments: zod fields, a zod object, properties of a JSON Schema, or a JSON Schema. */
function inputOf(name: string, args: unknown): ValueSchema {
  if (isZod(args)) return args;
  if (args === undefined) return z.object({});
  if (typeof args !== "object" || args === null)
    throw new Error(`${name} has args of type ${typeof args}; write zod fields or a JSON Schema`);
  const fields = Object.entries(args);
  if (fields.every(([, field]) => isZod(field))) return z.object(Object.fromEntries(fields));
  if (fields.some(([, field]) => isZod(field))) {
    throw new Error(`${name} has args of both zod and JSON Schema; write all of them the same way`);
  }
  // Schemas are data: values that are not JSON are dropped.
  const schema: JsonObject = JSON.parse(JSON.stringify(args));
  if (schema.type === "object" && typeof schema.properties === "object") return schema;
  const wrong = Object.entries(schema).find(([, field]) => !isObject(field));
  if (wrong)
    throw new Error(
      `${name} has an argument ${wrong[0]} without a schema; write, for example, z.string() or { "type": "string" }`,
    );
  const required = Object.entries(schema).flatMap(([key, field]) =>
    isObject(field) && "default" in field ? [] : [key],
  );
  return { type: "object", properties: schema, required };
}

async function contextOf(ctx: ToolContext) {
  const refusals = new Set<unknown>();
  const { directory } = ctx.workspace;
  const context: ForeignContext = {
    sessionID: ctx.sessionId,
    messageID: ctx.messageId,
    callID: ctx.callId,
    agent: ctx.agent,
    directory,
    worktree: await worktreeOf(directory),
    abort: ctx.signal,
    model: { providerID: ctx.model.providerId, modelID: ctx.model.modelId },
    extra: ctx.extra,
    metadata: ({ title, metadata, ...others }) => {
      const hasMetadata = metadata !== undefined || Object.keys(others).length > 0;
      ctx.metadata({
        ...(title !== undefined && { title }),
        ...(hasMetadata && { metadata: plainJson({ ...others, ...metadata }) }),
      });
    },
    async ask({ permission, patterns, always = [], metadata }) {
      try {
        await ctx.ask({ permission, patterns, always, metadata: plainJson(metadata ?? {}) });
      } catch (refusal) {
        refusals.add(refusal);
        throw refusal;
      }
    },
  };
  return { context, isRefusal: (error: unknown) => refusals.has(error) };
}

async function worktreeOf(directory: string): Promise<string> {
  for (let at = directory; ; at = dirname(at)) {
    if (await stat(join(at, ".git")).catch(() => undefined)) return at;
    if (at === dirname(at)) return directory;
  }
}

function resultOf(name: string, returned: unknown): ToolResult {
  const read = result.safeParse(
    typeof returned === "object" && returned !== null && "output" in returned && typeof returned.output === "string"
      ? returned
      : { output: textOf(returned) },
  );
  if (!read.success) {
    throw new ToolFailure(
      `The tool ${name} returned ${returned === undefined ? "nothing" : `a ${typeof returned} that is no result`}: return a text, a value of JSON, or { title, output, metadata, attachments }.`,
    );
  }
  const { title, output, metadata, attachments } = read.data;
  return {
    output,
    ...(title !== undefined && { title }),
    ...(isObject(metadata) && { metadata: plainJson(metadata) }),
    ...(attachments && { attachments: attachments.map((file) => attachmentOf(name, file)) }),
  };
}

/** Returns a value as text: JSON, except of a text itself. Undefined if it is none. */
function textOf(returned: unknown): string | undefined {
  if (typeof returned === "string") return returned;
  if (typeof returned === "bigint") return String(returned);
  try {
    return JSON.stringify(returned);
  } catch {
    return undefined;
  }
}

function attachmentOf(
  name: string,
  { mime, url, filename }: { mime: string; url: string; filename?: string | undefined },
): Attachment {
  const base64 = /^data:[^,]*;base64,(.*)$/s.exec(url)?.[1];
  if (base64 === undefined) {
    throw new ToolFailure(`The tool ${name} returned an attachment whose url is not "data:${mime};base64,...".`);
  }
  return { mime, data: Buffer.from(base64, "base64"), ...(filename !== undefined && { filename }) };
}

/** Tools of agents that run them themselves, by their names here: `KIND:Tool`. Their bodies are never entered here. */
export interface ForeignTools {
  /** Returns the tool of a name. A tool without a mapping asks for the permission of its name. */
  tool(name: string, place?: ForeignPlace): Tool;
  /** Reports whether a name has a mapping, so that it is one of a fixed set. */
  isMapped(name: string): boolean;
}

/** Place where an agent runs a tool. */
export interface ForeignPlace {
  /** Its working directory. */
  directory: string;
  /** True if the service sees the same files. */
  isDiskShared: boolean;
}

/** Returns the name of a foreign tool. */
export const foreignName = ({ kind, tool }: { kind: string; tool: string }) => `${kind}:${tool}`;
