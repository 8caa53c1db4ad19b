import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import type { ElicitRequest, ElicitResult, Progress } from "@modelcontextprotocol/client";
import type { QuestionAnswer, QuestionSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { Ask } from "../../core/ask.ts";
import { visible } from "../../core/visible.ts";
import { defineTool, wholeInput } from "../../tool/define-tool.ts";
import { ExecutorLost, ToolFailure } from "../../tool/errors.ts";
import { fillTemplate } from "../../tool/permission-template.ts";
import type { DefinedTool, Plan, ToolContext, ToolResult } from "../../tool/tool.ts";
import type { McpDefinition } from "./mcp-definition.ts";
import { resourceOf, resultOf } from "./mcp-result.ts";
import { errorWords, type Upstream } from "./upstream.ts";

/** Makes the tool that calls a tool of a server. Throws if its schemas cannot be used. */
export function upstreamTool(upstream: Upstream, definition: McpDefinition): DefinedTool {
  const { name, original, description, inputSchema, outputSchema, annotations } = definition;
  const { isTrusted, patterns } = upstream.settings;
  const template = patterns.get(original);
  const says = (hint: string) => annotations[hint] === true;
  return defineTool({
    name,
    description,
    version: definition.text,
    // What a person granted holds for what the server said then.
    permissionVersion: definition.text,
    input: inputSchema,
    ...(outputSchema && { outputSchema }),
    readOnly: isTrusted && says("readOnlyHint"),
    idempotent: isTrusted && says("idempotentHint"),
    destructive: says("destructiveHint"),
    openWorld: says("openWorldHint"),
    keep: { end: "both" },
    plan: (input) => planOf(name, input, template, isTrusted ? undefined : cautionOf(says)),
    execute: (input, ctx) => callUpstream(upstream, { name: original, arguments: input }, ctx),
  });
}

/** Makes the tool that reads resources of a server. */
export function resourceReader(upstream: Upstream): DefinedTool {
  const { name: server } = upstream.settings;
  return defineTool({
    name: readerName(server),
    description: `Read a resource of the MCP server ${server} by its URI, as its tools return it.`,
    version: "1",
    input: {
      type: "object",
      properties: { uri: { type: "string", minLength: 1, maxLength: 4_096 } },
      required: ["uri"],
      additionalProperties: false,
    },
    permissions: ["read"],
    keep: { end: "both" },
    plan: ({ uri }) => ({
      title: String(uri),
      asks: [{ permission: "read", patterns: [`mcp:${server}:${uri}`] }],
    }),
    async execute({ uri }, ctx) {
      const contents = await upstream.connection().read(String(uri), ctx.signal);
      const read = contents.map(resourceOf);
      return {
        output: read.flatMap(({ text }) => text ?? []).join("\n"),
        attachments: read.flatMap(({ attachment }) => attachment ?? []),
      };
    },
  });
}

export const readerName = (server: string) => `${server}_read_resource`;

/** Hints of a server about its tools. They are not trusted: they can only make a decision stricter. */
function cautionOf(says: (hint: string) => boolean): string | undefined {
  if (says("destructiveHint")) return "can destroy something, as its server says";
  return says("openWorldHint") ? "reaches systems outside, as its server says" : undefined;
}

/** A call asks for its arguments, or for what the template of its tool makes of them. */
function planOf(name: string, input: JsonObject, template: string | undefined, alwaysAsk: string | undefined): Plan {
  const { title, asks } = wholeInput(name, input);
  const filled = template === undefined ? undefined : fillTemplate(template, input);
  const [whole] = asks;
  // A template that the arguments do not fill says too little about them.
  const ask: Ask =
    filled === undefined && whole ? whole : { permission: name, patterns: filled ?? [], wholeCall: true };
  return {
    title,
    asks: [{ ...ask, always: ["*"], metadata: { input }, ...(alwaysAsk !== undefined && { alwaysAsk }) }],
  };
}

async function callUpstream(
  upstream: Upstream,
  tool: { name: string; arguments: JsonObject },
  ctx: ToolContext,
): Promise<ToolResult> {
  const { name: server, timeoutMs } = upstream.settings;
  const connection = upstream.connection();
  const silence = startSilence(timeoutMs, `The MCP server ${server} was silent for ${timeoutMs / 1_000} s.`);
  const signal = AbortSignal.any([ctx.signal, silence.signal]);
  try {
    const returned = await connection.call(
      tool,
      {
        progress(progress) {
          silence.restart();
          ctx.metadata({ metadata: { progress: progressOf(progress) } });
        },
        question: (request) => silence.whilePaused(() => askPerson(server, request, ctx)),
      },
      signal,
    );
    return resultOf(returned, readerName(server));
  } catch (error) {
    ctx.signal.throwIfAborted();
    if (silence.signal.aborted) void upstream.verify(connection).catch(() => undefined);
    silence.signal.throwIfAborted();
    if (error instanceof ToolFailure) throw error;
    const reason = errorWords(error);
    if (!upstream.isConnected(connection))
      throw new ExecutorLost(`The MCP server ${server} ended while the call ran: ${reason}`, { cause: error });
    throw new ToolFailure(`The MCP server ${server} refused the call: ${reason}`, { cause: error });
  } finally {
    silence.end();
  }
}

function progressOf({ progress, total, message }: Progress): JsonObject {
  return { progress, ...(total !== undefined && { total }), ...(message !== undefined && { message }) };
}

/** Creates the time limit of a call without progress. */
function startSilence(ms: number, message: string) {
  const limit = new AbortController();
  const lapse = () => limit.abort(new ToolFailure(message));
  let timer = setTimeout(lapse, ms);
  return {
    signal: limit.signal,
    restart(): void {
      clearTimeout(timer);
      timer = setTimeout(lapse, ms);
    },
    /** Does work that the server waits for. */
    async whilePaused<T>(work: () => Promise<T>): Promise<T> {
      clearTimeout(timer);
      return await work().finally(this.restart);
    },
    end: () => clearTimeout(timer),
  };
}

type AskedQuestion = MessageInitShape<typeof QuestionSchema>;
type Fields = Readonly<Record<string, Field>>;

/** A field of the form that a server sends: a text, a number, a boolean or a choice. */
interface Field {
  type?: string;
  title?: string;
  description?: string;
  enum?: readonly string[];
  enumNames?: readonly string[];
  oneOf?: readonly Titled[];
  anyOf?: readonly Titled[];
  items?: Field;
}

type Titled = { const: string; title?: string };

/** Asks a person what a server wants to know. A person who refuses declines; nothing is ever accepted without one. */
async function askPerson(
  server: string,
  request: ElicitRequest["params"],
  { question }: Pick<ToolContext, "question">,
): Promise<ElicitResult> {
  const about = `The MCP server ${server} asks: ${cut(visible(request.message), maxTextLength)}`;
  if (request.mode === "url") {
    const opened = "I have opened it";
    const answers = await question([choice(`${about}\nIt wants you to open ${visible(request.url)}`, [opened])]);
    return { action: answers?.[0]?.values.includes(opened) ? "accept" : "decline" };
  }
  const fields = Object.entries((request.requestedSchema.properties ?? {}) as Fields);
  if (fields.length > maxFields) return { action: "cancel" };
  if (fields.length === 0) {
    const answers = await question([choice(about, ["yes", "no"])]);
    return answers?.[0]?.values.includes("yes") ? { action: "accept", content: {} } : { action: "decline" };
  }
  const answers: QuestionAnswer[] = [];
  for (let at = 0; at < fields.length; at += maxQuestions) {
    const page = fields.slice(at, at + maxQuestions).map(([name, field]) => questionOf(about, name, field));
    const given = await question(page);
    if (given === undefined) return { action: "decline" };
    answers.push(...given);
  }
  const content: NonNullable<ElicitResult["content"]> = {};
  for (const [index, [name, field]] of fields.entries()) {
    const value = answeredValue(field, answers[index]?.values ?? []);
    if (value !== undefined) content[name] = value;
  }
  const missing = (request.requestedSchema.required ?? []).some((name) => !Object.hasOwn(content, name));
  return missing ? { action: "decline" } : { action: "accept", content };
}

function choice(question: string, labels: readonly string[]): AskedQuestion {
  return { question, options: labels.map((label) => ({ label })), custom: false };
}

/** Makes the question of one field. */
function questionOf(about: string, name: string, field: Field): AskedQuestion {
  const { title = name, description = "", type } = field;
  const text = `${about}\n${cut(visible([title, description].filter(Boolean).join(": ")), maxTextLength)}`;
  const choices = type === "boolean" ? yesOrNo : choicesOf(type === "array" ? (field.items ?? {}) : field);
  return {
    ...choice(
      text,
      choices.map(({ label }) => label),
    ),
    header: cut(visible(title), maxHeaderLength),
    multiple: type === "array",
    custom: choices.length === 0,
  };
}

interface Choice {
  label: string;
  value: string | boolean;
}

const yesOrNo: readonly Choice[] = [
  { label: "yes", value: true },
  { label: "no", value: false },
];

/** Lists the values of a field that has a fixed set of them, each with what the person sees. */
function choicesOf({ enum: values = [], enumNames = [], oneOf, anyOf }: Field): Choice[] {
  const titled = oneOf ?? anyOf;
  const all = titled
    ? titled.map(({ const: value, title = value }) => ({ value, label: title }))
    : values.map((value, index) => ({ value, label: enumNames[index] ?? value }));
  return all.map(({ value, label }) => ({ value, label: cut(visible(label), maxLabelLength) }));
}

/** Reads a person's answer as a value of the field; undefined if there is none that fits. */
function answeredValue(field: Field, given: readonly string[]): string | number | boolean | string[] | undefined {
  const { type } = field;
  if (type === "array") {
    const chosen = choicesOf(field.items ?? {}).filter(({ label }) => given.includes(label));
    return chosen.map(({ value }) => String(value));
  }
  const [text] = given;
  if (text === undefined) return undefined;
  if (type === "boolean") return yesOrNo.find(({ label }) => label === text)?.value;
  const choices = choicesOf(field);
  if (choices.length > 0) return choices.find(({ label }) => label === text)?.value;
  if (type !== "number" && type !== "integer") return text;
  const number = Number(text);
  return Number.isFinite(number) && (type === "number" || Number.isInteger(number)) ? number : undefined;
}

const cut = (text: string, length: number) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);
const maxFields = 50;
/** Questions of one permission request. */
const maxQuestions = 10;
const maxTextLength = 900;
const maxHeaderLength = 30;
const maxLabelLength = 100;
