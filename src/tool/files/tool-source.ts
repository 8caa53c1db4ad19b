import { createHash } from "node:crypto";
import type { Problem } from "./modules.ts";

/** A directory of tool files or a plugin file, loaded again whenever it changes. */
export interface ToolSource {
  readonly path: string;
  /** The workspace root in which its tools serve; undefined: everywhere. */
  readonly workspace: string | undefined;
  /** Files that could not be loaded at the last refresh. */
  problems: Problem[];
  /** The reason to deny all calls that it would guard; undefined if it is loaded, or not required. */
  guardProblem(): string | undefined;
  /** Reports whether nothing has changed since the last refresh; synchronous, since each call asks. */
  isCurrent(): boolean;
  /** Loads what has changed. Throws if the whole source cannot be loaded. */
  refresh(): Promise<void>;
}

/** A loaded version of a file; `close` removes its tools and hooks. */
export interface LoadedFile {
  readonly version: string;
  close(): void;
}

/** Digests the parts of a version. */
export function versionDigest(...parts: (string | Uint8Array)[]): string {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest("hex").slice(0, 32);
}
