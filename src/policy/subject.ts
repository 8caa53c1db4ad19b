import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";

/** The subject of a decision: the session (with its ancestors, root first), the agent, and the tool as grants identify it. */
export interface Subject {
  session: Session | undefined;
  ancestors: readonly Session[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  /** The canonical directory of the session. */
  directory: string;
  tool: string;
  /** The value to which grants for this tool are bound. */
  binding: string;
}
