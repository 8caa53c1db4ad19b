import { create } from "@bufbuild/protobuf";
import { type FilePart, FilePartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { Attachment } from "../tool/tool.ts";

/** Inline size of one file and of all files of a part, whose event holds at most 1 MiB. */
const maxInlineBytes = 64 * 1024;
const maxInlineTotalBytes = 256 * 1024;
const maxFileBytes = 5 * 1024 * 1024;

/**
 * Turns the files that a tool returned into parts. Small files are inline while they fit; `store` stores the others and
 * returns their URL. Files that another call has stored are passed on. Throws `ToolFailure` for a file over 5 MiB.
 */
export async function fileParts(
  files: readonly (Attachment | FilePart)[],
  store: (data: Uint8Array) => Promise<string>,
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
    const isInline = data.length <= maxInlineBytes && inline + data.length <= maxInlineTotalBytes;
    if (isInline) inline += data.length;
    const url = isInline ? `data:${mime};base64,${Buffer.from(data).toString("base64")}` : await store(data);
    const named = filename !== undefined && { filename };
    parts.push(create(FilePartSchema, { type: "file", mime, size: BigInt(data.length), ...named, url }));
  }
  return parts;
}

/** Returns the file of a part that holds it inline. */
function inlineFile({ mime, filename, url }: FilePart): Attachment {
  const data = Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
  return { mime, ...(filename !== undefined && { filename }), data };
}
