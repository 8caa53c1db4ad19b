import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { AgentUser } from "../connect/agent-user.ts";

/** The way to run an agent against a mock model. */
export interface AgentProgram {
  /** Name of its program in PATH. */
  readonly name: string;
  readonly protocol: ModelProtocol;
  /** Native tools of the versions that we know: one that the agent does not offer is disabled. */
  readonly knownTools: readonly string[];
  /** Arguments for a run whose inputs name files below the directory. */
  args(directory: string): readonly string[];
  /** Arguments that ask the agent to run no hooks, which hooks at its system level survive. */
  readonly withoutHooks: readonly string[];
  /** Inputs, below a directory, of tools whose schema does not show what the agent accepts. */
  readonly samples: Readonly<Record<string, (directory: string) => JsonObject>>;
  /** Files that these inputs name: texts by path below the directory. */
  readonly files: Readonly<Record<string, string>>;
  /** The variables with which it talks to the mock model only. */
  env(url: string, user: AgentUser): Record<string, string>;
  /** Reads name and schema of a tool that the agent offers to its model. */
  toolOf(offered: unknown): { name: string; schema: unknown } | undefined;
  /** Checks if a tool comes from an MCP server. */
  isForeign(tool: string, mcpName: string): boolean;
}

/** The agents that a canary can run. */
export const agentPrograms: Readonly<Record<"claude" | "opencode", AgentProgram>> = {
  claude: {
    name: "claude",
    protocol: "anthropic",
    knownTools: ["Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "WebFetch", "WebSearch", "Write"],
    // Without our hook each tool would run, so that the table shows a hook that is missing.
    args: (directory) => [
      ...["-p", "canary", "--output-format", "json", "--dangerously-skip-permissions"],
      ...["--add-dir", directory],
    ],
    withoutHooks: ["--settings", JSON.stringify({ disableAllHooks: true })],
    samples: {
      // Once a year.
      CronCreate: () => ({ cron: "0 0 1 1 *", prompt: "canary" }),
      Monitor: (directory) => ({ description: "canary", timeout_ms: 1_000, command: `touch '${markerIn(directory)}'` }),
      NotebookEdit: (directory) => ({ notebook_path: `${directory}/canary.ipynb`, new_source: "canary" }),
      Skill: () => ({ skill: "canary" }),
      Workflow: () => ({ script: "export const meta = { name: 'canary', description: 'canary', phases: [] };" }),
    },
    files: {
      "canary.ipynb": JSON.stringify({ cells: [], metadata: {}, nbformat: 4, nbformat_minor: 5 }),
      ".claude/skills/canary/SKILL.md": "---\nname: canary\ndescription: canary\n---\ncanary\n",
    },
    env: (url, { uid }) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: "none",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      DISABLE_AUTOUPDATER: "1",
      // Offers all tools at once.
      ENABLE_TOOL_SEARCH: "false",
      ...(uid === 0 && { IS_SANDBOX: "1" }),
    }),
    toolOf(offered) {
      const { name, input_schema: schema } = fieldsOf(offered);
      return typeof name === "string" ? { name, schema } : undefined;
    },
    isForeign: (tool) => tool.startsWith("mcp__"),
  },
  opencode: {
    name: "opencode",
    protocol: "openai",
    knownTools: ["bash", "edit", "glob", "grep", "read", "task", "webfetch", "write"],
    args: () => ["run", "--format", "json", "canary"],
    withoutHooks: [],
    samples: {},
    files: {},
    env: (url) => ({
      OPENCODE_CONFIG_CONTENT: JSON.stringify(opencodeModel(url)),
      OPENCODE_DISABLE_MODELS_FETCH: "1",
      npm_config_offline: "true",
    }),
    toolOf(offered) {
      const { name, parameters: schema } = fieldsOf(fieldsOf(offered).function);
      return typeof name === "string" ? { name, schema } : undefined;
    },
    isForeign: (tool, mcpName) => tool.startsWith(`${mcpName}_`),
  },
};

function opencodeModel(url: string) {
  const options = { baseURL: `${url}/v1`, apiKey: "none" };
  const models = { m: { name: "m", tool_call: true } };
  const provider = { canary: { npm: "@ai-sdk/openai-compatible", name: "canary", options, models } };
  const allowAll = { "*": "allow" };
  return {
    ...{ model: "canary/m", small_model: "canary/m", autoupdate: false, share: "disabled", provider },
    permission: allowAll,
  };
}

function fieldsOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null ? { ...value } : {};
}

/** A use of a tool that the model asks for. */
export interface ToolUse {
  /** Sent as the ID of the use; absent: a new one. */
  readonly id?: string;
  readonly tool: string;
  readonly input: JsonObject;
}

/** A request of an agent to its model. */
export interface ModelRequest {
  readonly model: string;
  readonly messages: readonly { readonly role: string; readonly content: unknown }[];
  readonly tools?: readonly unknown[];
}

/** A model that follows a script instead of thinking. */
interface MockModel {
  readonly url: string;
  close(): void;
}

/** The protocols of models. */
export type ModelProtocol = "anthropic" | "openai";

/** Chooses what the model answers: a use of a tool, or undefined for the text "done". */
type NextUse = (request: ModelRequest) => ToolUse | undefined;

/** Serves a model on this machine, for agents that are pointed to it. */
export async function startMockModel(protocol: ModelProtocol, next: NextUse): Promise<MockModel> {
  const server = createServer(async (request, response) => {
    if (request.method !== "POST" || request.url?.includes("count_tokens")) return void response.writeHead(404).end();
    const body = await readJson(request);
    response.writeHead(200, { "content-type": "text/event-stream" });
    replies[protocol](response, body, randomUUID(), next(body));
    response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  return {
    url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}

type Reply = (response: ServerResponse, request: ModelRequest, id: string, use: ToolUse | undefined) => void;

const replies: Readonly<Record<ModelProtocol, Reply>> = { anthropic: replyAnthropic, openai: replyOpenAi };

/** Answers as the Messages API of Anthropic does. */
function replyAnthropic(...[response, { model }, id, use]: Parameters<Reply>): void {
  const send = (type: string, data: object) =>
    response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
  const usage = { input_tokens: 1, output_tokens: 1 };
  const message = { id: `msg_${id}`, type: "message", role: "assistant", model, content: [], usage };
  send("message_start", { message: { ...message, stop_reason: null, stop_sequence: null } });
  const block = use
    ? { type: "tool_use", id: use.id ?? `toolu_${id}`, name: use.tool, input: {} }
    : { type: "text", text: "" };
  send("content_block_start", { index: 0, content_block: block });
  const delta = use
    ? { type: "input_json_delta", partial_json: JSON.stringify(use.input) }
    : { type: "text_delta", text: "done" };
  send("content_block_delta", { index: 0, delta });
  send("content_block_stop", { index: 0 });
  send("message_delta", { delta: { stop_reason: use ? "tool_use" : "end_turn", stop_sequence: null }, usage });
  send("message_stop", {});
}

/** Answers as OpenAI's chat completions do. */
function replyOpenAi(...[response, { model }, id, use]: Parameters<Reply>): void {
  const send = (delta: object, finish_reason: string | null = null) => {
    const choices = [{ index: 0, delta, finish_reason }];
    const chunk = { id, object: "chat.completion.chunk", created: 1, model, choices };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  const call = (fn: ToolUse) => ({ name: fn.tool, arguments: JSON.stringify(fn.input) });
  if (use)
    send({
      role: "assistant",
      tool_calls: [{ index: 0, id: use.id ?? `call_${id}`, type: "function", function: call(use) }],
    });
  else send({ role: "assistant", content: "done" });
  send({}, use ? "tool_calls" : "stop");
  response.write("data: [DONE]\n\n");
}

async function readJson(request: IncomingMessage): Promise<ModelRequest> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces).toString());
}

/** A JSON Schema, as agents send it to their model. */
interface Schema {
  readonly type?: unknown;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly enum?: readonly JsonValue[];
  readonly const?: JsonValue;
  readonly anyOf?: readonly Schema[];
  readonly minItems?: number;
}

/**
 * Creates a harmless input that fits a tool's schema: commands and files leave a mark in the canary's directory, addresses lead
 * nowhere, and servers are our MCP server.
 */
export function sampleInput(
  schema: unknown,
  { directory, mcpName }: { directory: string; mcpName: string },
): JsonObject {
  const known = isSchema(schema) ? schema : {};
  const file = "content" in (known.properties ?? {}) ? markerIn(directory) : existingFileIn(directory);
  const sample = sampleOf("input", known, { directory, file, mcpName });
  return typeof sample === "object" && sample !== null && !Array.isArray(sample) ? sample : {};
}

function sampleOf(name: string, schema: Schema, place: Place): JsonValue {
  if (schema.const !== undefined) return schema.const;
  const [first] = schema.enum ?? [];
  if (first !== undefined) return first;
  const [option] = schema.anyOf ?? [];
  if (option !== undefined) return sampleOf(name, option, place);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "number" || type === "integer") return 1;
  if (type === "boolean") return false;
  if (type === "array") {
    const count = Math.max(schema.minItems ?? 1, 1);
    return Array.from({ length: count }, () => sampleOf(name, schema.items ?? { type: "string" }, place));
  }
  if (type !== "object" && schema.properties === undefined) return textFor(name, place);
  const { properties = {}, required = [] } = schema;
  return Object.fromEntries(required.map((key) => [key, sampleOf(key, properties[key] ?? {}, place)]));
}

/** Places that the inputs name. */
interface Place {
  readonly directory: string;
  readonly file: string;
  readonly mcpName: string;
}

/** Returns a text for a property by its name, which is all that shows what the tool does with it. */
function textFor(name: string, { directory, file, mcpName }: Place): string {
  if (/^server$/i.test(name)) return mcpName;
  if (/command|cmd|^script/i.test(name)) return `touch '${markerIn(directory)}'`;
  if (/path|file/i.test(name)) return file;
  if (/url|uri/i.test(name)) return "https://canary.invalid/";
  if (/new_?string/i.test(name)) return "canary 2";
  return "canary";
}

/** Returns the file in the canary's directory that a tool leaves if it runs. */
function markerIn(directory: string): string {
  return `${directory}/canary-marker.txt`;
}

/** Returns the file in the canary's directory that is there from the start, with the text "canary". */
export function existingFileIn(directory: string): string {
  return `${directory}/canary.txt`;
}

/** Checks if a tool replaces a text by another one. */
export function changesText(schema: unknown): boolean {
  return Object.keys((isSchema(schema) && schema.properties) || {}).some((name) => /^old_?string$/i.test(name));
}

function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null;
}
