import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isJsonObject } from "./decision-json.ts";

/**
 * Returns the text of a tool's result: what a command printed, the content of a file that was read, the changed lines of an edit,
 * the text items of a list of content, otherwise the JSON.
 */
export function resultText(response: JsonValue | undefined): string {
  if (typeof response === "string") return response;
  if (typeof response !== "object" || response === null) return JSON.stringify(response ?? "");
  const content = Array.isArray(response) ? response : response.content;
  const texts = Array.isArray(content) ? content.map(textItem) : [];
  if (texts.length > 0 && texts.every((text) => text !== undefined)) return texts.join("\n");
  if (Array.isArray(response)) return JSON.stringify(response);
  return printedText(response) ?? fileText(response) ?? changedLines(response) ?? JSON.stringify(response);
}

function printedText({ stdout, stderr }: JsonObject): string | undefined {
  if (typeof stdout !== "string") return undefined;
  return [stdout, stderr].filter((text) => typeof text === "string" && text !== "").join("\n");
}

function fileText({ file }: JsonObject): string | undefined {
  return isJsonObject(file) && typeof file.content === "string" ? file.content : undefined;
}

/** The whole file before and after, which the result also has, would be repeated for each edit. */
function changedLines({ filePath, structuredPatch }: JsonObject): string | undefined {
  if (typeof filePath !== "string" || !Array.isArray(structuredPatch)) return undefined;
  const lines = structuredPatch.flatMap((hunk) => {
    if (!isJsonObject(hunk) || !Array.isArray(hunk.lines)) return [];
    const { oldStart, oldLines, newStart, newLines } = hunk;
    return [`@@ -${oldStart},${oldLines} +${newStart},${newLines} @@`, ...hunk.lines.map(String)];
  });
  return [filePath, ...lines].join("\n");
}

function textItem(item: JsonValue): string | undefined {
  return isJsonObject(item) && item.type === "text" && typeof item.text === "string" ? item.text : undefined;
}
