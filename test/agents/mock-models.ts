import { onTestFinished } from "vitest";
import {
  type ModelProtocol,
  type ModelRequest,
  startMockModel,
  type ToolUse,
} from "../../src/cli/canary/mock-model.ts";

/** Chooses the next use from the results so far. */
export type NextStep = (results: readonly string[]) => ToolUse | undefined;

/** The uses of a conversation, or the function that chooses them. */
export type Steps = readonly ToolUse[] | NextStep;

/** The steps of each conversation, by a text of its first messages; the first entry that matches wins. */
export type Script = readonly (readonly [text: string, steps: Steps])[];

/** A model of a script. */
export interface MockModel {
  readonly url: string;
  /** The results of tools that the agent sent to it, as JSON, in order. */
  readonly results: readonly string[];
}

/** Serves the Anthropic Messages API for one test: asks for each step of the script, then says "done". */
export function serveAnthropic(script: Script): Promise<MockModel> {
  return serveScript("anthropic", script);
}

/** Serves OpenAI's chat completions for one test: asks for each step of the script, then says "done". */
export function serveOpenAi(script: Script): Promise<MockModel> {
  return serveScript("openai", script);
}

/** Serves OpenAI's Responses API for one test, likewise. */
export function serveResponses(script: Script): Promise<MockModel> {
  return serveScript("responses", script);
}

/** Serves the Gemini API for one test, likewise. */
export function serveGemini(script: Script): Promise<MockModel> {
  return serveScript("gemini", script);
}

async function serveScript(protocol: ModelProtocol, script: Script): Promise<MockModel> {
  const results: string[] = [];
  const model = await startMockModel(protocol, (request) => {
    // A reminder of the agent may follow the result.
    const since = request.messages.slice(request.messages.findLastIndex(({ role }) => role === "assistant") + 1);
    const result = since.map((message) => JSON.stringify(message)).find((text) => isResult.test(text));
    if (result !== undefined) results.push(result);
    return nextStep(script, request, results);
  });
  onTestFinished(model.close);
  return { url: model.url, results };
}

const isResult = /"tool_result"|"role":"tool"/;

/** A request without tools is for a title or a summary; otherwise the assistant's messages count the steps that were taken. */
function nextStep(
  script: Script,
  { messages, tools = [] }: ModelRequest,
  results: readonly string[],
): ToolUse | undefined {
  if (tools.length === 0) return undefined;
  const answered = messages.findIndex(({ role }) => role === "assistant");
  const asked = answered === -1 ? messages : messages.slice(0, answered);
  const first = JSON.stringify(asked.filter(({ role }) => role === "user"));
  const steps = script.find(([text]) => first.includes(text))?.[1] ?? [];
  if (typeof steps === "function") return steps(results);
  return steps[messages.filter(({ role }) => role === "assistant").length];
}
