/** The package `@toolgate/ai`: the tools of a Toolgate service as tools of the AI SDK. */

export type { CallCompleted, CallFailed, CallOutput, CallRunning, CallWaiting, OpenAsk } from "./output.ts";
export { type ExplainedApproval, type ToolgateTools, type ToolgateToolsOptions, toolgateTools } from "./tools.ts";
