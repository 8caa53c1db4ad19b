import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";

/** Whose call is judged: the session (with its ancestors, root first), the agent, and the tool as grants know it. */
export interface Subject {
  session: Session | undefined;
  ancestors: readonly Session[];
  agent: string;
  /** The name of the workspace root. */
  workspace: string;
  /** The canonical folder of the session. */
  directory: string;
  tool: string;
  /** What grants for this tool are bound to. */
  binding: string;
}
