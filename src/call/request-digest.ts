import { hash } from "node:crypto";

/** Digest of a request: two calls are the same request if tool and canonical input as sent are equal. */
export function digestOfRequest(tool: string, canonicalInput: string): string {
  return hash("sha256", `${tool}\n${canonicalInput}`, "base64url");
}
