import { create } from "@bufbuild/protobuf";
import { type FilePart, FilePartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { Attachment } from "../tool/tool.ts";

/** A file that is inline in a part, and what all of a part are together: an event holds 1 MiB. */
const maxInlineBytes = 64 * 1024;
const maxInline = 256 * 1024;
const maxFileBytes = 5 * 1024 * 1024;

/**
 * Writes the files that a tool returned into parts: small ones inline as long as there is room, the others where `keep` puts
 * them, which returns their address. What another call has kept stays where it is. Throws `ToolFailure` for one over 5 MiB.
 */
export async function fileParts(
  files: readonly (Attachment | FilePart)[],
  keep: (data: Uint8Array) => Promise<string>,
): Promise<FilePart[]> {
  const parts: FilePart[] = [];
  let inline = 0;
  for (const file of files) {
    if ("url" in file && !file.url.startsWith("data:")) {
      parts.push(file);
      continue;
    }
    const { mime, filename, data } = "url" in file ? inlineFile(file) : file;
    if (data.length > maxFileBytes) {
      throw new ToolFailure(
        `The file ${filename ?? mime} that the tool returned has ${data.length} bytes; at most 5 MiB can be attached. Make it smaller.`,
      );
    }
    const isInline = data.length <= maxInlineBytes && inline + data.length <= maxInline;
    if (isInline) inline += data.length;
    const url = isInline ? `data:${mime};base64,${Buffer.from(data).toString("base64")}` : await keep(data);
    const named = filename !== undefined && { filename };
    parts.push(create(FilePartSchema, { type: "file", mime, size: BigInt(data.length), ...named, url }));
  }
  return parts;
}

/** The file of a part that holds it inline. */
function inlineFile({ mime, filename, url }: FilePart): Attachment {
  const data = Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
  return { mime, ...(filename !== undefined && { filename }), data };
}
