import type { MessageInitShape } from "@bufbuild/protobuf";
import type { ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallToolRequest, ExecuteToolRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";

type Request = CallToolRequest | ExecuteToolRequest;
type State = NonNullable<MessageInitShape<typeof ToolPartSchema>["state"]>;

/** The part of an echo call in a state. */
export function part({ sessionId, messageId, callId, tool }: Request, state: State) {
  return { id: `prt_${callId}`, sessionId, messageId, type: "tool", callId, tool, agent: "build", revision: 3n, state };
}

/** The completed state: its output is its input. */
export function completed({ input = {} }: Request): State {
  const output = String(input.text);
  const metadata = { truncated: false, originalSize: output.length, truncatedSize: output.length, outputPath: null };
  const time = { start: Date.now(), end: Date.now() };
  return { case: "completed", value: { status: "completed", input, output, title: "echo", metadata, time } };
}
