import type { MessageInitShape } from "@bufbuild/protobuf";
import type { SourceSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import type { PathStamps } from "./file-stamp.ts";
import type { Problem } from "./problem.ts";

/** A directory of tool files, or plugins, in one workspace; loaded again whenever it changes. */
export interface ToolSource {
  /** The workspace root in which its tools and hooks serve. */
  readonly workspace: string;
  /** True for a plugin that the configuration names. */
  readonly isConfigured: boolean;
  /** Files that could not be loaded at the last refresh, and processes that ended. */
  problems(): Problem[];
  /** The reason to deny all calls that it would guard; undefined if it is loaded, or not required. */
  guardProblem(): string | undefined;
  /** Reports whether nothing has changed since the last refresh; synchronous, since each call asks. See `FileStamp`. */
  isCurrent(seen?: PathStamps): boolean;
  /** Loads what has changed. It never throws: what cannot be loaded is a problem. */
  refresh(): Promise<void>;
  /** Describes its process; undefined if it needs none. */
  describe(): Promise<MessageInitShape<typeof SourceSchema> | undefined>;
  close(): Promise<void>;
}
