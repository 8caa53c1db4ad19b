import type { ExportedTool } from "../../tool/foreign.ts";

/** A tool that the process serves. */
export interface ServedTool extends ExportedTool {
  /** Digest of its file and of all local files that it imports. */
  readonly source: string;
  /** The file of `load` that brings it. */
  readonly file: string;
}
