import type { JsonObject } from "@bufbuild/protobuf";
import type { Progress } from "@modelcontextprotocol/client";
import type { Ask } from "../../core/ask.ts";
import { defineTool, wholeInput } from "../../tool/define-tool.ts";
import { ExecutorLost, ToolFailure } from "../../tool/errors.ts";
import { fillTemplate } from "../../tool/permission-template.ts";
import type { Plan, Tool, ToolContext, ToolResult } from "../../tool/tool.ts";
import { askPerson } from "./elicitation.ts";
import type { McpDefinition } from "./mcp-definition.ts";
import { resourceOf, resultOf } from "./mcp-result.ts";
import type { Upstream } from "./upstream.ts";

/** Makes the tool that calls a tool of a server. Throws if its schemas cannot be used. */
export function upstreamTool(upstream: Upstream, definition: McpDefinition): Tool {
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
export function resourceReader(upstream: Upstream): Tool {
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
    const reason = error instanceof Error ? error.message : String(error);
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
