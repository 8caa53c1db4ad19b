import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type CreateSessionRequest,
  type Session,
  SessionSchema,
} from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { newId } from "../core/ids.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { checkRules } from "../policy/layers.ts";
import { checkKeys, checkSize } from "./check-size.ts";
import type { SessionStore, StoreClock } from "./ports.ts";

/** Dependencies of the creation of a session. */
interface NewSessionParts {
  store: Pick<SessionStore, "createSession"> & StoreClock;
  agentFor(principal: Principal, requested: string): string;
  expectStore(expected: string, root?: string): Promise<void>;
  look(principal: Principal, id: string, access: "call"): Promise<{ session: Session; ancestors: readonly Session[] }>;
  openNamed(principal: Principal, workspace: string): Promise<unknown>;
  /** Returns the name of the innermost root, of those that the principal may use, that contains a directory. */
  rootOf(principal: Principal, directory: string): Promise<string | undefined>;
}

/** Creates a session, or returns the session of that id if it has the same owner, parent and workspace. */
export async function createSession(
  { store, agentFor, expectStore, look, openNamed, rootOf }: NewSessionParts,
  principal: Principal,
  request: CreateSessionRequest,
): Promise<Session> {
  await expectStore(request.expectedStoreId);
  checkKeys("metadata", request.metadata);
  checkSize("metadata", request.metadata, 64 * 1024);
  checkRules("rules", request.rules);
  const parent = request.parentSessionId === "" ? undefined : await look(principal, request.parentSessionId, "call");
  if (parent) checkLists([...parent.ancestors, parent.session, request]);
  const now = store.now();
  const id = request.sessionId || newId("ses", now);
  const holding = request.directory === "" ? undefined : await rootOf(principal, request.directory);
  const workspace = request.workspace || (parent?.session.workspace ?? holding ?? "default");
  if (request.agent !== "") agentFor(principal, request.agent);
  await openNamed(principal, workspace);
  const wanted = create(SessionSchema, {
    id,
    workspace,
    agent: request.agent || parent?.session.agent || "build",
    rules: request.rules,
    parentSessionId: request.parentSessionId,
    rootSessionId: parent?.session.rootSessionId ?? id,
    title: request.title,
    metadata: request.metadata ?? {},
    owner: principal.id,
    created: now,
    requester: request.requester ?? parent?.session.requester,
  });
  await expectStore(request.expectedStoreId, wanted.rootSessionId);
  const session = await store.createSession(wanted);
  // The owner is compared first, so that other fields reveal nothing about a foreign session.
  for (const field of ["owner", "parentSessionId", "workspace"] as const) {
    const isGiven = field === "workspace" ? request.workspace !== "" : true;
    if (isGiven && session[field] !== wanted[field]) throw sessionDiffers(id, field);
  }
  return session;
}

/** Refuses a session below so many others with rules that judging its calls would take long. */
function checkLists(chain: readonly { rules: readonly unknown[] }[]): void {
  const count = chain.filter(({ rules }) => rules.length > 0).length;
  if (count <= maxRuleLists) return;
  throw new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `rules would be list ${count} of this session and those above it, over the limit of ${maxRuleLists}; create it without rules, or higher up`,
    { field: "rules" },
  );
}

const maxRuleLists = 32;

function sessionDiffers(sessionId: string, field: string): RequestError {
  const name = field === "parentSessionId" ? "parent_session_id" : field;
  return new RequestError(
    ErrorReason.SESSION_DIFFERS,
    `session ${sessionId} exists with another ${name}; choose another id`,
    { session_id: sessionId, field: name },
  );
}
