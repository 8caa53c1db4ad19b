import { extname } from "node:path";

/** Bytes at the start of a file that suffice to detect its kind. */
export const headLength = 4_096;

/** A kind of file that is returned unchanged, since models can read it. */
export interface AttachmentKind {
  mime: string;
  word: "Image" | "PDF";
}

/** Detects a kind of attachment by content; undefined if it is none. */
export function attachmentKind(head: Uint8Array): AttachmentKind | undefined {
  // One character for each byte.
  const start = Buffer.from(head.subarray(0, 16)).toString("latin1");
  if (start.startsWith("RIFF") && start.startsWith("WEBP", 8)) return image("image/webp");
  return signatures.find(([signature]) => start.startsWith(signature))?.[1];
}

const image = (mime: string): AttachmentKind => ({ mime, word: "Image" });

const signatures: readonly (readonly [string, AttachmentKind])[] = [
  ["\xff\xd8\xff", image("image/jpeg")],
  ["\x89PNG\r\n\x1a\n", image("image/png")],
  ["GIF87a", image("image/gif")],
  ["GIF89a", image("image/gif")],
  ["%PDF-", { mime: "application/pdf", word: "PDF" }],
];

/** Encodings that a byte order mark names. Other text is read as UTF-8, or as Latin-1 where a line is not valid UTF-8. */
export type MarkedEncoding = "utf-16le" | "utf-16be";

/** Returns the encoding that a byte order mark names, unless it is UTF-8. */
export function markedEncoding(head: Uint8Array): MarkedEncoding | undefined {
  if (head[0] === 0xff && head[1] === 0xfe) return "utf-16le";
  return head[0] === 0xfe && head[1] === 0xff ? "utf-16be" : undefined;
}

/** Detects binary files: by extension, a NUL, or more than 30 % control characters at the start. */
export function isBinary(name: string, head: Uint8Array): boolean {
  if (binaryExtensions.has(extname(name).toLowerCase())) return true;
  if (markedEncoding(head) !== undefined) return false;
  if (head.includes(0)) return true;
  let controls = 0;
  for (let i = 0; i < head.length; i++) {
    const byte = head[i] ?? 0;
    if (byte < 9 || (byte > 13 && byte < 32)) controls += 1;
  }
  return controls > head.length * 0.3;
}

const binaryExtensions = new Set(
  [
    [".zip", ".tar", ".gz", ".7z", ".jar", ".war"],
    [".exe", ".dll", ".so", ".a", ".o", ".obj", ".lib", ".class", ".wasm", ".pyc", ".pyo", ".bin", ".dat"],
    [".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".ods", ".odp"],
  ].flat(),
);
