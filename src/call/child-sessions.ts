import { create } from "@bufbuild/protobuf";
import {
  PermissionAction,
  PermissionLayer,
  type PermissionRule,
  PermissionRuleSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Session, SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { cancelCall } from "./cancel.ts";
import type { Engine } from "./engine.ts";
import { inputOf } from "./state.ts";

/** The session of a subagent before it is created. */
export interface NewChildSession {
  id: string;
  parent: Session;
  agent: string;
  title: string;
  /** Agent of the call that starts the subagent. */
  startedBy: string;
}

/**
 * Creates the session of a subagent, or returns the existing one of that id. Its parent's rules and denies apply, and so do those
 * of the agent that starts it, which may be another agent than the parent session's.
 */
export async function openChildSession(
  engine: Pick<Engine, "layersFor" | "store">,
  { id, parent, agent, title, startedBy }: NewChildSession,
): Promise<Session> {
  const rules = startedBy === parent.agent ? [] : limitsOf(engine, startedBy);
  const session = create(SessionSchema, {
    ...{ id, agent, title, rules },
    workspace: parent.workspace,
    parentSessionId: parent.id,
    rootSessionId: parent.rootSessionId,
    metadata: {},
    owner: parent.owner,
    created: engine.store.now(),
    ...(parent.requester && { requester: parent.requester }),
  });
  return await engine.store.createSession(session);
}

/** Returns what is denied to an agent, as rules of a session: as in any inherited list, only denies count, so its asks are allowed. */
function limitsOf({ layersFor }: Pick<Engine, "layersFor">, agent: string): PermissionRule[] {
  const { narrow, wide } = layersFor({ session: undefined, ancestors: [], agent });
  const limits = narrow.find(({ layer }) => layer === PermissionLayer.AGENT_LIMITS);
  const rules = limits ?? wide.find(({ layer }) => layer === PermissionLayer.AGENT);
  const { ALLOW, DENY } = PermissionAction;
  return (rules?.rules ?? []).map(({ permission, pattern, action }) =>
    create(PermissionRuleSchema, { permission, pattern, action: action === DENY ? DENY : ALLOW }),
  );
}

/** Cancels the open calls of a session and of its descendants, which stay open for further calls. */
export async function cancelCallsOf(engine: Engine, sessionId: string, reason: string): Promise<void> {
  const { sessions, store } = engine;
  const known = await sessions.find(sessionId);
  if (!known) return;
  const tree = await store.listSessions({ root: known.session.rootSessionId, limit: 10_000 });
  const below = new Set([sessionId]);
  // A parent is older than its children.
  for (const { id, parentSessionId } of tree.toReversed()) if (below.has(parentSessionId)) below.add(id);
  const open = await Promise.all([...below].map((id) => store.listCalls({ sessionId: id, open: true, limit: 10_000 })));
  await Promise.all(open.flat().map(({ ref }) => cancelCall(engine, ref, reason)));
}

/** Returns the note that names the session of a call's subagent, from which a later call can go on; empty without one. */
export async function noteOfChildSession({ sessions }: Engine, part: ToolPart): Promise<string> {
  const { childSessionId, tool } = part;
  if (childSessionId === "" || (await sessions.find(childSessionId)) === undefined) return "";
  const known = `What the subagent did until then is in its session ${childSessionId}.`;
  // A call that was to continue it knows the session, and may have failed since that cannot be done.
  if (inputOf(part).session_id === childSessionId) return known;
  return `${known} To continue it, call ${tool} with session_id "${childSessionId}".`;
}
