import { toJson } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import { type CallToolResult, type ContentBlock, ProtocolError, ProtocolErrorCode } from "@modelcontextprotocol/server";
import {
  type FilePart,
  ToolErrorReason,
  type ToolPart,
  type ToolStateCompleted,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { enumWord } from "../../view/words.ts";
import { outputUri, readWholeOutput } from "./output-resources.ts";
import type { ToolgateApi } from "./toolgate-api.ts";

/** Maximum size of a file that is sent inside a result. */
const maxInlineBytes = 1_048_576;
/** Maximum size of structured output: hosts may show it to the model in place of the bounded text. */
const maxStructuredBytes = 16_384;

/** The request whose result is made. */
export interface ResultContext {
  readonly api: ToolgateApi;
  readonly era: "legacy" | "modern";
  /** Session of the client; output of another one is linked with its session. */
  readonly ownSessionId: string;
}

/** Makes the result of a call that has ended. A failure that the model can repair is a result; an unknown tool is an error. */
export async function endedCallResult(part: ToolPart, context: ResultContext): Promise<CallToolResult> {
  const { sessionId, callId, state } = part;
  const meta = { "toolgate/sessionId": sessionId, "toolgate/callId": callId, "toolgate/state": state.case ?? "" };
  if (state.case === "error") {
    const { reason, error } = state.value;
    if (reason === ToolErrorReason.UNKNOWN_TOOL) throw new ProtocolError(ProtocolErrorCode.InvalidParams, error);
    return {
      isError: true,
      content: [{ type: "text", text: error }],
      _meta: { ...meta, "toolgate/reason": enumWord(ToolErrorReason, reason) },
    };
  }
  if (state.case !== "completed") throw new Error(`call ${callId} has not ended`);
  const { output, metadata, attachments } = state.value;
  const files = await Promise.all(attachments.map((file) => fileContent(file, part, context)));
  const structured = structuredOf(state.value, context);
  return {
    content: [{ type: "text", text: output }, ...files, ...wholeOutput(state.value, part, context)],
    ...(structured !== undefined && { structuredContent: structured }),
    _meta: { ...meta, ...(metadata?.exit !== undefined && { "toolgate/exit": metadata.exit }) },
  };
}

/** Returns structured output that is complete and small. Legacy clients accept objects only. */
function structuredOf(
  { structuredOutput, metadata }: ToolStateCompleted,
  { era }: ResultContext,
): CallToolResult["structuredContent"] | undefined {
  if (structuredOutput === undefined || metadata?.truncated === true) return undefined;
  const json = toJson(ValueSchema, structuredOutput);
  const isObject = typeof json === "object" && json !== null && !Array.isArray(json);
  if (era === "legacy" && !isObject) return undefined;
  return Buffer.byteLength(JSON.stringify(json)) > maxStructuredBytes ? undefined : structuredJson(structuredOutput);
}

const structuredJson = (value: Value) => toJson(ValueSchema, value) as CallToolResult["structuredContent"];

/** Links the whole of an output that was truncated. */
function wholeOutput(
  { metadata }: ToolStateCompleted,
  { tool, sessionId }: ToolPart,
  { ownSessionId }: ResultContext,
): ContentBlock[] {
  const { outputPath, originalSize } = metadata ?? {};
  if (typeof outputPath !== "string") return [];
  return [
    {
      type: "resource_link",
      uri: outputUri(outputPath, sessionId, ownSessionId),
      name: `whole output of ${tool}`,
      mimeType: "text/plain",
      ...(typeof originalSize === "number" && { size: originalSize }),
    },
  ];
}

/** Embeds an image or a sound up to a limit, and links any other file. */
async function fileContent(
  { mime, url, filename, size }: FilePart,
  { sessionId }: ToolPart,
  { api, ownSessionId }: ResultContext,
): Promise<ContentBlock> {
  const [kind] = mime.split("/", 1);
  const inline = /^data:[^,]*;base64,(.*)$/s.exec(url)?.[1];
  if (kind === "image" || kind === "audio") {
    const stored = inline === undefined && size <= BigInt(maxInlineBytes);
    const data = stored ? (await readWholeOutput(api, sessionId, url, maxInlineBytes)).toString("base64") : inline;
    if (data !== undefined) return { type: kind, data, mimeType: mime };
  }
  const name = filename ?? "file";
  if (inline !== undefined)
    return {
      type: "resource",
      resource: { uri: `attachment:${encodeURIComponent(name)}`, mimeType: mime, blob: inline },
    };
  return {
    type: "resource_link",
    uri: outputUri(url, sessionId, ownSessionId),
    name,
    mimeType: mime,
    size: Number(size),
  };
}
