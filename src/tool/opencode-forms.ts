import * as z from "zod";
import type { ForeignContext, ForeignResult } from "./foreign.ts";

/** Arguments as zod fields, or as properties of a JSON Schema (all required except those with a `default`). */
export type Args = z.ZodRawShape | Readonly<Record<string, object>>;

/** The decoded arguments that `execute` gets. */
export type ArgsOf<A> = A extends z.ZodRawShape ? z.output<z.ZodObject<A>> : Record<string, unknown>;

/** A tool declared by its arguments. */
export interface ToolByArgs<A extends Args> {
  description: string;
  args: A;
  execute(args: ArgsOf<A>, ctx: ForeignContext): Promise<ForeignResult> | ForeignResult;
}

/** A tool declared by a zod schema. */
export interface ToolByParameters<P extends z.ZodType> {
  description: string;
  parameters: P;
  execute(args: z.output<P>, ctx: ForeignContext): Promise<ForeignResult> | ForeignResult;
}

/** Declares a tool whose arguments are zod fields; `tool.schema` is zod. */
export function tool<A extends z.ZodRawShape>(definition: ToolByArgs<A>): ToolByArgs<A> {
  return definition;
}
tool.schema = z;

/** Declares a tool by its arguments, or under an ID, then also by a function that makes it; exported as `Tool`. */
export const opencodeTool = { define };

function define<const A extends Args>(definition: ToolByArgs<A>): ToolByArgs<A>;
function define<P extends z.ZodType>(
  id: string,
  init: ToolByParameters<P> | ((ctx: object) => Promise<ToolByParameters<P>> | ToolByParameters<P>),
): { id: string; init: typeof init };
function define(first: unknown, init?: unknown): unknown {
  return typeof first === "string" ? { id: first, init } : first;
}
