import type { CallRef } from "../../core/call-ref.ts";

/** Values that tools store between calls. */
export interface ToolMemory {
  /** Returns the SHA-256 (hex) of a file as the session tree last read it, by canonical path. */
  getRead(root: string, path: string): Promise<string | undefined>;
  recordRead(root: string, path: string, sha256: string): Promise<void>;
  /** Returns a tool's value of a session, as JSON text, by name; it lives as long as the session. */
  getState(session: Pick<CallRef, "root" | "sessionId">, name: string): Promise<string | undefined>;
  setState(session: Pick<CallRef, "root" | "sessionId">, name: string, value: string): Promise<void>;
}
