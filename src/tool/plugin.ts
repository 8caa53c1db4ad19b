/** Entry of `toolgate/plugin`: everything that tool files and plugins import. */
import * as z from "zod";
import type { Hooks } from "./hooks.ts";

export type { Ask } from "../core/ask.ts";
export { defineTool } from "./define-tool.ts";
export { ToolFailure } from "./errors.ts";
export type { ForeignContext as PluginToolContext, ForeignResult as PluginToolResult } from "./foreign.ts";
export type { Hooks } from "./hooks.ts";
export type { OpenFile } from "./open-file.ts";
export {
  type Args,
  type ArgsOf,
  opencodeTool as Tool,
  type ToolByArgs,
  type ToolByParameters,
  tool,
} from "./opencode-forms.ts";
export type { ChangeForm, Plan, PlanContext, ToolContext, ToolResult } from "./tool.ts";
export { filePath, type PathHandle, type Workspace } from "./workspace.ts";
export { z };

/** A plugin: hooks, and tools by name. It names them when it starts, once for each workspace, and adds none later. */
export interface Plugin extends Hooks {
  name: string;
  tool?: Readonly<Record<string, object>>;
}

/** Declares a plugin. */
export function definePlugin(plugin: Plugin): Plugin {
  return plugin;
}
