import { createHash } from "node:crypto";

/** What makes two calls the same request: the tool and its canonical input as sent. */
export function digestOfRequest(tool: string, canonicalInput: string): string {
  return createHash("sha256").update(`${tool}\n${canonicalInput}`).digest("base64url");
}
