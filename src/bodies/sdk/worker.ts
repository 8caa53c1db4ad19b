/** Entry of `toolgate/worker`: tools whose bodies run in the process that imports it. */
export type { Ask } from "../../core/ask.ts";
export { type AskTemplate, defineTool, type ToolConfig, type WorkerSettings } from "../../tool/define-tool.ts";
export { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
export { z } from "../../tool/plugin.ts";
export type { DefinedTool as Tool, Plan, PlanContext, ToolContext, ToolResult } from "../../tool/tool.ts";
export { type ServeOptions, serve } from "./run-worker.ts";
