/** What tools and plugins outside this repository are written with: `import { … } from "toolgate/plugin"`. */
import * as z from "zod";
import type { ForeignContext, ForeignResult } from "./files/foreign.ts";
import type { Hooks } from "./hooks.ts";

export { defineTool } from "./define-tool.ts";
export { ToolFailure } from "./errors.ts";
export type { ForeignContext as PluginToolContext, ForeignResult as PluginToolResult } from "./files/foreign.ts";
export type { Hooks } from "./hooks.ts";
export { z };

/** Fields of zod, or properties of JSON Schema (all of them required but those with a `default`). */
export type Args = z.ZodRawShape | Readonly<Record<string, object>>;

/** What `execute` gets for them. */
export type ArgsOf<A> = A extends z.ZodRawShape ? z.output<z.ZodObject<A>> : Record<string, unknown>;

/** A tool by its arguments. */
export interface ToolByArgs<A extends Args> {
  description: string;
  args: A;
  execute(args: ArgsOf<A>, ctx: ForeignContext): Promise<ForeignResult> | ForeignResult;
}

/** A tool by a zod object. */
export interface ToolByParameters<P extends z.ZodType> {
  description: string;
  parameters: P;
  execute(args: z.output<P>, ctx: ForeignContext): Promise<ForeignResult> | ForeignResult;
}

/** Writes down a tool whose arguments are fields of zod; `tool.schema` is zod. */
export function tool<A extends z.ZodRawShape>(definition: ToolByArgs<A>): ToolByArgs<A> {
  return definition;
}
tool.schema = z;

/** Writes down a tool: by its arguments, or under a name of its own, and then also by a function that makes it. */
export const Tool = { define };

function define<const A extends Args>(definition: ToolByArgs<A>): ToolByArgs<A>;
function define<P extends z.ZodType>(
  id: string,
  init: ToolByParameters<P> | ((ctx: object) => Promise<ToolByParameters<P>> | ToolByParameters<P>),
): { id: string; init: typeof init };
function define(first: unknown, init?: unknown): unknown {
  return typeof first === "string" ? { id: first, init } : first;
}

/** A plugin: hooks, and tools by name. */
export interface Plugin extends Hooks {
  name: string;
  tool?: Readonly<Record<string, object>>;
}

/** Writes down a plugin. */
export function definePlugin(plugin: Plugin): Plugin {
  return plugin;
}
