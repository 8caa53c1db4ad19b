import { createRequire } from "node:module";
import type { Tool } from "ai";
import type { OutputCompleted, ToolgateOutput } from "./output.ts";

type ModelOutput = Awaited<ReturnType<NonNullable<Tool["toModelOutput"]>>>;
type ModelContent = Extract<ModelOutput, { type: "content" }>["value"][number];

/** Returns what the model reads of a call. */
export function modelOutputOf(output: ToolgateOutput): ModelOutput {
  if (output.status === "error") return { type: "error-text", value: output.error };
  if (output.status !== "completed") return { type: "text", value: `The call ${output.callId} has not ended.` };
  const files = output.attachments.flatMap(fileOf);
  if (files.length === 0) return { type: "text", value: output.output };
  return { type: "content", value: [{ type: "text", text: output.output }, ...files] };
}

/** Returns the content of a file that came with the call, in the form of the installed version. */
function fileOf({ mime: mediaType, url, filename }: OutputCompleted["attachments"][number]): ModelContent[] {
  const [, data] = /^data:[^,]*;base64,(.*)$/s.exec(url) ?? [];
  if (data === undefined) return [];
  const named = { mediaType, ...(filename !== undefined && { filename }) };
  if (installed.version.startsWith("6.")) return [{ type: "file-data", data, ...named }];
  return [{ type: "file", data: { type: "data", data }, ...named }];
}

/** The user's AI SDK, read at run time: a bundler would inline the version of the build. */
const installed: { version: string } = createRequire(import.meta.url)("ai/package.json");
