import { create, type JsonValue } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type CreateSessionRequest,
  type Session,
  SessionSchema,
} from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { newId } from "../core/ids.ts";
import type { Principal } from "../core/principal.ts";
import { noSuchSession, RequestError } from "../core/request-error.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import { checkRules } from "../policy/layers.ts";
import { openWorkspace, type Workspace } from "../tool/workspace.ts";
import type { CallStore } from "./ports.ts";

/** A session, as far as it never changes, with its chain of ancestors, root first. */
export interface KnownSession {
  session: Session;
  ancestors: readonly Session[];
}

/** A session with what its calls need besides: its folder, which must be there and be served here. */
export interface OpenSession extends KnownSession {
  workspace: Workspace;
}

/** What a request wants to do with a session: call in it (its owner), stop things (owner, admin), or read. */
export type SessionAccess = "call" | "control" | "read";

export type Sessions = ReturnType<typeof createSessions>;

/** What never changes about a session is kept for this many of them. */
const cached = 10_000;

export function createSessions({
  store,
  workspaces,
  agents,
}: {
  store: CallStore;
  /** Root name → folder. */
  workspaces: Readonly<Record<string, string>>;
  agents: ReadonlySet<string>;
}) {
  const known = new Map<string, KnownSession & { workspace: () => Promise<Workspace> }>();

  /** The folder of `NAME` or `NAME/folder`, which lies below the root, symlinks looked through. */
  async function openNamed(name: string): Promise<Workspace> {
    const rootName = workspaceRoot(name);
    const directory = Object.hasOwn(workspaces, rootName) ? workspaces[rootName] : undefined;
    if (directory === undefined) throw unknownWorkspace(name, `configured are: ${Object.keys(workspaces).join(", ")}`);
    try {
      const root = await openWorkspace(rootName, directory);
      if (name === rootName) return root;
      const folder = await root.resolve(name.slice(rootName.length + 1));
      if (folder.external) throw unknownWorkspace(name, "the folder is not below its root");
      return await openWorkspace(name, folder.absolute);
    } catch (cause) {
      if (cause instanceof RequestError) throw cause;
      throw unknownWorkspace(name, "the folder does not exist", cause);
    }
  }

  async function find(id: string) {
    const before = known.get(id);
    if (before) return before;
    const session = await store.getSession(id);
    if (!session) return undefined;
    const parent = session.parentSessionId === "" ? undefined : await find(session.parentSessionId);
    const ancestors: Session[] = parent ? [...parent.ancestors, parent.session] : [];
    let place: Workspace | undefined;
    const workspace = async () => (place ??= await openNamed(session.workspace));
    const found = { session, ancestors, workspace };
    known.set(id, found);
    const oldest = known.size > cached ? known.keys().next().value : undefined;
    if (oldest !== undefined) known.delete(oldest);
    return found;
  }

  async function load(id: string): Promise<OpenSession | undefined> {
    const found = await find(id);
    return found && { ...found, workspace: await found.workspace() };
  }

  /** The session (not its `closed` and `last_seq`), wherever its folder is; NO_SUCH_SESSION if it is not known or not yours. */
  async function look(principal: Principal, id: string, access: SessionAccess): Promise<KnownSession> {
    const found = await find(id);
    if (!found || !mayAccess(principal, found.session, access)) throw noSuchSession(id);
    return found;
  }

  /** Likewise, to call something in it or to judge what it would do. */
  async function open(principal: Principal, id: string, access: SessionAccess): Promise<OpenSession> {
    await look(principal, id, access);
    const opened = await load(id);
    if (!opened) throw noSuchSession(id);
    return opened;
  }

  function checkStore(expected: string): void {
    if (expected === "" || expected === store.storeId) return;
    throw new RequestError(
      ErrorReason.STORE_CHANGED,
      `the store is ${store.storeId}, not ${expected}: what became of earlier calls is not known. Nothing was run; look at the effects, then send the new store id`,
      { store_id: store.storeId },
    );
  }

  /** The agent that a request names, else the session's, else `build`. */
  function agentFor(principal: Principal, asked: string, session?: Session): string {
    const agent = asked || session?.agent || "build";
    const allowed = principal.agents.includes("*") || principal.agents.includes(agent);
    if (agents.has(agent) && allowed) return agent;
    throw new RequestError(
      ErrorReason.UNKNOWN_AGENT,
      agents.has(agent)
        ? `this token may not act as agent "${agent}"`
        : `agent "${agent}" is not configured; configured are: ${[...agents].join(", ")}`,
      { agent },
    );
  }

  async function createSession(principal: Principal, request: CreateSessionRequest): Promise<Session> {
    checkStore(request.expectedStoreId);
    checkSize("metadata", request.metadata, 64 * 1024);
    checkRules("rules", request.rules);
    const parent = request.parentSessionId === "" ? undefined : await look(principal, request.parentSessionId, "call");
    const now = store.now();
    const id = request.sessionId || newId("ses", now);
    const workspace = request.workspace || (parent?.session.workspace ?? "default");
    if (request.agent !== "") agentFor(principal, request.agent);
    await openNamed(workspace);
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
    });
    const session = await store.createSession(wanted);
    // Whose it is comes first, so that nobody learns about a foreign session from the other fields.
    for (const field of ["owner", "parentSessionId", "workspace"] as const) {
      const given = field === "workspace" ? request.workspace !== "" : true;
      if (given && session[field] !== wanted[field]) throw differs(id, field);
    }
    return session;
  }

  return {
    look,
    open,
    find,
    load,
    agentFor,
    checkStore,
    openNamed,
    create: createSession,
    /** The session as it is now. */
    async get(principal: Principal, id: string): Promise<Session> {
      await look(principal, id, "read");
      const session = await store.getSession(id);
      if (!session) throw noSuchSession(id);
      return session;
    },
    /** Newest first, of those that may be seen. */
    async list(principal: Principal, filter: { root?: string; before?: string; limit: number }): Promise<Session[]> {
      if (filter.root !== undefined) await look(principal, filter.root, "read");
      return await store.listSessions({ ...filter, ...(!readsAll(principal) && { owner: principal.id }) });
    },
  };
}

/** Whether a principal reads every session. */
export function readsAll({ roles }: Principal): boolean {
  return roles.has("approver") || roles.has("watcher") || roles.has("admin");
}

/** Whether a principal may do so much with a session. */
export function mayAccess(principal: Principal, session: Session, access: SessionAccess): boolean {
  if (session.owner === principal.id) return true;
  if (access === "read") return readsAll(principal);
  return principal.roles.has("admin");
}

/** Refuses a JSON value of the caller's that is over a limit. */
export function checkSize(field: string, value: JsonValue | undefined, limit: number): void {
  if (value === undefined) return;
  const size = Buffer.byteLength(JSON.stringify(value));
  if (size <= limit) return;
  throw new RequestError(ErrorReason.INVALID_MESSAGE, `${field} is ${size} bytes as JSON, over the limit of ${limit}`, {
    field,
  });
}

function unknownWorkspace(workspace: string, why: string, cause?: unknown): RequestError {
  return new RequestError(ErrorReason.UNKNOWN_WORKSPACE, `workspace "${workspace}": ${why}`, { workspace }, { cause });
}

function differs(sessionId: string, field: string): RequestError {
  const name = field === "parentSessionId" ? "parent_session_id" : field;
  return new RequestError(
    ErrorReason.SESSION_DIFFERS,
    `session ${sessionId} exists with another ${name}; choose another id`,
    { session_id: sessionId, field: name },
  );
}
