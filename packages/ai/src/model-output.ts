import type { Tool } from "ai";
import sdk from "ai/package.json" with { type: "json" };
import type { CallCompleted, CallOutput } from "./output.ts";

type ModelOutput = Awaited<ReturnType<NonNullable<Tool["toModelOutput"]>>>;
type ModelContent = Extract<ModelOutput, { type: "content" }>["value"][number];

/** Returns what the model reads of a call. */
export function modelOutputOf(output: CallOutput): ModelOutput {
  if (output.status === "error") return { type: "error-text", value: output.error };
  if (output.status !== "completed") return { type: "text", value: `The call ${output.callId} has not ended.` };
  const files = output.attachments.flatMap(fileOf);
  if (files.length === 0) return { type: "text", value: output.output };
  return { type: "content", value: [{ type: "text", text: output.output }, ...files] };
}

/** Returns the content of a file that came with the call, in the form of the installed version. */
function fileOf({ mime: mediaType, url, filename }: CallCompleted["attachments"][number]): ModelContent[] {
  const [, data] = /^data:[^,]*;base64,(.*)$/s.exec(url) ?? [];
  if (data === undefined) return [];
  const named = { mediaType, ...(filename !== undefined && { filename }) };
  if (sdk.version.startsWith("6.")) return [{ type: "file-data", data, ...named }];
  return [{ type: "file", data: { type: "data", data }, ...named }];
}
