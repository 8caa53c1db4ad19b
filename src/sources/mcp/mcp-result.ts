import type { JsonValue } from "@bufbuild/protobuf";
import type { CallToolResult, ContentBlock } from "@modelcontextprotocol/client";
import { ToolFailure } from "../../tool/errors.ts";
import type { Attachment, ToolResult } from "../../tool/tool.ts";

/** Makes the result of a call of what a server returned. Texts stay as they are: the service bounds them. */
export function resultOf(returned: CallToolResult, reader: string): ToolResult {
  const contents = returned.content.map((block) => contentOf(block, reader));
  const output = contents.flatMap(({ text }) => text ?? []).join("\n");
  if (returned.isError === true) throw new ToolFailure(output || "The tool failed without a message.");
  const attachments = contents.flatMap(({ attachment }) => attachment ?? []);
  const structured = returned.structuredContent as JsonValue | undefined;
  return {
    // A server may send the structured result alone.
    output: output === "" && attachments.length === 0 && structured !== undefined ? JSON.stringify(structured) : output,
    ...(attachments.length > 0 && { attachments }),
    ...(structured !== undefined && { structured }),
  };
}

interface Content {
  text?: string;
  attachment?: Attachment;
}

function contentOf(block: ContentBlock, reader: string): Content {
  switch (block.type) {
    case "text":
      return { text: block.text };
    case "image":
    case "audio":
      return { attachment: { mime: block.mimeType, data: Buffer.from(block.data, "base64") } };
    case "resource":
      return resourceOf(block.resource);
    case "resource_link":
      return {
        text: `[resource ${JSON.stringify(block.uri)} ${JSON.stringify(block.name)}: read it with the tool ${reader}]`,
      };
  }
}

/** The form in which MCP sends the content of a resource. */
export interface Resource {
  uri: string;
  mimeType?: string | undefined;
  text?: string;
  blob?: string;
}

/** Makes a content of a resource: its text with the address as a heading, or a file. */
export function resourceOf({ uri, mimeType, text, blob }: Resource): Content {
  if (text !== undefined) return { text: `[resource ${JSON.stringify(uri)}]\n${fenced(text)}` };
  const data = Buffer.from(blob ?? "", "base64");
  return { attachment: { mime: mimeType ?? "application/octet-stream", data, filename: uri.split("/").at(-1) || uri } };
}

/** Puts a text between fences that it does not contain, so that nothing in it looks like the text around it. */
function fenced(text: string): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
