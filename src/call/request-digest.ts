import { hash } from "node:crypto";

/** What makes two calls the same request: the tool and its canonical input as sent. */
export function digestOfRequest(tool: string, canonicalInput: string): string {
  return hash("sha256", `${tool}\n${canonicalInput}`, "base64url");
}
