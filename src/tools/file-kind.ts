import { extname } from "node:path";
import { fileTypeFromBuffer } from "file-type";

/** How many bytes of a file's beginning are enough to tell its kind. */
export const headLength = 4_100;

/** What is returned as it is, because models can look at it. */
export interface AttachmentKind {
  mime: string;
  word: "Image" | "PDF";
}

/** The kind of attachment that a file is by its content; undefined if it is none. */
export async function attachmentKind(head: Uint8Array): Promise<AttachmentKind | undefined> {
  const type = await fileTypeFromBuffer(head);
  return type === undefined ? undefined : attachmentKinds.get(type.mime);
}

/** Whether a file is not text: by its extension, a NUL, or more than 30 % control characters at its beginning. */
export function isBinary(name: string, head: Uint8Array): boolean {
  const sample = head.subarray(0, 4_096);
  const controls = sample.filter((byte) => byte < 9 || (byte > 13 && byte < 32)).length;
  return binaryExtensions.has(extname(name).toLowerCase()) || sample.includes(0) || controls > sample.length * 0.3;
}

const attachmentKinds = new Map<string, AttachmentKind>([
  ["image/jpeg", { mime: "image/jpeg", word: "Image" }],
  ["image/png", { mime: "image/png", word: "Image" }],
  ["image/apng", { mime: "image/png", word: "Image" }],
  ["image/gif", { mime: "image/gif", word: "Image" }],
  ["image/webp", { mime: "image/webp", word: "Image" }],
  ["application/pdf", { mime: "application/pdf", word: "PDF" }],
]);

const binaryExtensions = new Set(
  [
    [".zip", ".tar", ".gz", ".7z", ".jar", ".war"],
    [".exe", ".dll", ".so", ".a", ".o", ".obj", ".lib", ".class", ".wasm", ".pyc", ".pyo", ".bin", ".dat"],
    [".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".ods", ".odp"],
  ].flat(),
);
