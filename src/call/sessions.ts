import { realpath } from "node:fs/promises";
import { isAbsolute } from "node:path";
import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type CreateSessionRequest,
  type Session,
  SessionSchema,
} from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { setNewest } from "../core/bounded-map.ts";
import { newId } from "../core/ids.ts";
import { isWithin, workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import { noSuchSession, RequestError } from "../core/request-error.ts";
import { checkRules } from "../policy/layers.ts";
import { openWorkspace, type Workspace } from "../tool/workspace.ts";
import { checkMetadata } from "./check-size.ts";
import type { SessionStore, StoreClock, StoreMembership } from "./ports.ts";

/** A session and its ancestors, root first. Only fields that never change are reliable: not `closed` and `last_seq`. */
export interface KnownSession {
  session: Session;
  ancestors: readonly Session[];
}

/** A session whose workspace directory exists and is served by this replica: calls may run in it. */
export interface OpenSession extends KnownSession {
  workspace: Workspace;
}

/** Dependencies of sessions. */
export interface SessionsParts {
  store: SessionStore & StoreClock & Pick<StoreMembership, "storeId" | "storeIdOf" | "verifyIds">;
  /** Directory by name of the workspace root. */
  workspaces: Readonly<Record<string, string>>;
  agents: ReadonlySet<string>;
}

/** Access to sessions, with the checks of who may use them. */
export interface Sessions {
  /** Returns a session, also one whose workspace is not served here. Throws NO_SUCH_SESSION if it is unknown or not accessible. */
  look(principal: Principal, id: string, access: SessionAccess): Promise<KnownSession>;
  /** Checks if the principal may read a session that exists. */
  isReadable(principal: Principal, id: string): Promise<boolean>;
  /** Like `look`, with the session's workspace open. */
  open(principal: Principal, id: string, access: SessionAccess): Promise<OpenSession>;
  /** Returns a session without an access check. */
  find(id: string): Promise<KnownSession | undefined>;
  /** Like `find`, with the session's workspace open. */
  load(id: string): Promise<OpenSession | undefined>;
  /** Returns the agent that a request names, otherwise the session's, otherwise `build`; throws if the principal may not use it. */
  agentFor(principal: Principal, requested: string, session?: Session): string;
  /** Like `open`; throws STORE_CHANGED if the store is not the one that the caller expects, also of a session that it has lost. */
  openExpected(principal: Principal, id: string, expected: string): Promise<OpenSession>;
  /**
   * Throws STORE_CHANGED if the store is not the one that the caller expects or, of this tree, may have lost acknowledged work. Asks the
   * store before, unless the expected id is an earlier one: where this replica is cut off, the caller may know a later id, and gets
   * STORE_UNAVAILABLE.
   */
  expectStore(expected: string, root?: string): Promise<void>;
  /** Like `expectStore`, in this turn. For a caller whose store was expected before: what differs since then is later. */
  checkStore(expected: string, root?: string): void;
  /** Throws if the principal may not act in the workspace. */
  checkWorkspace(principal: Principal, workspace: string): void;
  /** Returns the root among those of the principal that contains a directory, the deepest if several do; throws UNKNOWN_WORKSPACE. */
  workspaceAt(principal: Principal, directory: string): string;
  /** Opens a workspace by name; throws if the principal may not act in it. */
  openNamed(principal: Principal, workspace: string): Promise<Workspace>;
  create(principal: Principal, request: CreateSessionRequest): Promise<Session>;
  /** Reads the session as it is now. */
  get(principal: Principal, id: string): Promise<Session>;
  /** Lists the sessions that the principal may read, newest first. */
  list(principal: Principal, filter: { root?: string; before?: string; limit: number }): Promise<Session[]>;
}

/** Number of sessions whose unchanging fields are cached. */
const maxCached = 10_000;

/** Creates access to the sessions of a store. */
export function createSessions({ store, workspaces, agents }: SessionsParts): Sessions {
  const cache = new Map<string, KnownSession & { workspace: () => Promise<Workspace> }>();
  const openNamed: Sessions["openNamed"] = async (principal, name) => {
    checkWorkspace(principal, name);
    return await openNamedWorkspace(workspaces, name);
  };

  async function find(id: string) {
    const cached = cache.get(id);
    if (cached) return cached;
    const session = await store.getSession(id);
    if (!session) return undefined;
    const parent = session.parentSessionId === "" ? undefined : await find(session.parentSessionId);
    const ancestors: Session[] = parent ? [...parent.ancestors, parent.session] : [];
    let opened: Workspace | undefined;
    const workspace = async () => (opened ??= await openNamedWorkspace(workspaces, session.workspace));
    const found = { session, ancestors, workspace };
    setNewest(cache, id, found, maxCached);
    return found;
  }

  async function load(id: string): Promise<OpenSession | undefined> {
    const found = await find(id);
    return found && { ...found, workspace: await found.workspace() };
  }

  async function look(principal: Principal, id: string, access: SessionAccess): Promise<KnownSession> {
    const found = await find(id);
    if (!found || !mayAccess(principal, found.session, access)) throw noSuchSession(id);
    return found;
  }

  async function open(principal: Principal, id: string, access: SessionAccess): Promise<OpenSession> {
    await look(principal, id, access);
    const opened = await load(id);
    if (!opened) throw noSuchSession(id);
    return opened;
  }

  const checkStore = (expected: string, root?: string) =>
    root === undefined
      ? checkStoreId(store.storeId, expected, expected.split(".")[0])
      : checkStoreId(store.storeIdOf(root), expected);
  async function expectStore(expected: string, root?: string): Promise<void> {
    try {
      checkStore(expected, root);
    } catch (error) {
      if (root !== undefined && isEarlier(expected, store.storeIdOf(root))) throw error;
      await store.verifyIds(root);
      checkStore(expected, root);
    }
  }

  const usableBy = (principal: Principal) =>
    Object.entries(workspaces).filter(([name]) => mayUseWorkspace(principal, name));
  const rootOf = (principal: Principal, directory: string) => rootContaining(usableBy(principal), directory);
  const agentFor: Sessions["agentFor"] = (principal, requested, session) =>
    checkAgent(agents, principal, requested || session?.agent || "build");

  return {
    look,
    async isReadable(principal, id) {
      const found = await find(id);
      return found !== undefined && mayAccess(principal, found.session, "read");
    },
    open,
    async openExpected(principal, id, expected) {
      await expectStore(expected);
      const opened = await open(principal, id, "call").catch(async (error: unknown) => {
        // The root of a session that is gone is not known; mostly it is its own.
        await expectStore(expected, id);
        throw error;
      });
      await expectStore(expected, opened.session.rootSessionId);
      return opened;
    },
    find,
    load,
    agentFor,
    expectStore,
    checkStore,
    checkWorkspace,
    workspaceAt(principal, directory) {
      const usable = usableBy(principal);
      const found = rootAround(usable, directory);
      if (found === undefined) throw outsideWorkspaces(principal, usable, directory);
      return found;
    },
    openNamed,
    async create(principal, request) {
      checkMayCreate(principal, request.sessionId);
      return await createSession({ store, agentFor, expectStore, look, openNamed, rootOf }, principal, request);
    },
    async get(principal, id) {
      await look(principal, id, "read");
      const session = await store.getSession(id);
      if (!session) throw noSuchSession(id);
      return session;
    },
    async list(principal, filter) {
      if (filter.root !== undefined) await look(principal, filter.root, "read");
      return await store.listSessions({ ...filter, ...(!readsAll(principal) && { owner: principal.id }) });
    },
  };
}

/** True if the principal may act in the workspace root. */
export function mayUseWorkspace({ workspaces }: Principal, root: string): boolean {
  return workspaces.includes("*") || workspaces.includes(root);
}

function checkWorkspace(principal: Principal, workspace: string): void {
  if (mayUseWorkspace(principal, workspaceRoot(workspace))) return;
  throw new RequestError(
    ErrorReason.UNKNOWN_WORKSPACE,
    `this token may not act in workspace "${workspace}"; it may in: ${principal.workspaces.join(", ")}`,
    { workspace },
  );
}

/** Refuses a session other than the one that the principal is bound to. */
function checkMayCreate({ id, session }: Principal, wanted: string): void {
  if (session === undefined || wanted === session) return;
  const fact = `the token "${id}" is that of one run of an agent: it may act in session ${session} only`;
  throw new RequestError(ErrorReason.ROLE_MISSING, fact, { rpc: "CreateSession", roles: "" });
}

function outsideWorkspaces(
  { id }: Principal,
  usable: readonly (readonly [name: string, directory: string])[],
  directory: string,
): RequestError {
  const places = usable.map(([name, root]) => `${name} (${root})`).join(", ") || "none";
  return new RequestError(
    ErrorReason.UNKNOWN_WORKSPACE,
    `the directory ${directory} lies in no workspace of the token "${id}"; it may act in: ${places}. Configure the directory under [workspace]`,
    { workspace: directory },
  );
}

/** Compares store ids; while the session is not known, by `compared`, the expected id without its generation. */
function checkStoreId(storeId: string, expected: string, compared = expected): void {
  if (expected === "" || storeId === compared) return;
  throw new RequestError(
    ErrorReason.STORE_CHANGED,
    `the store is ${storeId}, not ${expected}: the outcome of earlier calls is unknown. Nothing was run; check their effects, then send the new store id`,
    { store_id: storeId },
  );
}

/** True for an earlier generation of the same store, which no other replica can know as the later one. */
function isEarlier(expected: string, storeId: string): boolean {
  const [store, generation = "0"] = expected.split(".");
  const [own, ownGeneration = "0"] = storeId.split(".");
  return store === own && Number(generation) < Number(ownGeneration);
}

function checkAgent(agents: ReadonlySet<string>, principal: Principal, agent: string): string {
  const isAllowed = principal.agents.includes("*") || principal.agents.includes(agent);
  if (agents.has(agent) && isAllowed) return agent;
  throw new RequestError(
    ErrorReason.UNKNOWN_AGENT,
    agents.has(agent)
      ? `this token may not act as agent "${agent}"`
      : `agent "${agent}" is not configured; configured are: ${[...agents].join(", ")}`,
    { agent },
  );
}

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
async function createSession(
  { store, agentFor, expectStore, look, openNamed, rootOf }: NewSessionParts,
  principal: Principal,
  request: CreateSessionRequest,
): Promise<Session> {
  await expectStore(request.expectedStoreId);
  checkMetadata(request.metadata);
  checkRules("rules", request.rules);
  const parent = request.parentSessionId === "" ? undefined : await look(principal, request.parentSessionId, "call");
  if (parent) {
    checkDepth(parent.ancestors.length + 1);
    checkLists([...parent.ancestors, parent.session, request]);
  }
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

/** Refuses a session below so many others that a step, which writes its events to the logs of all of them, would take long. */
function checkDepth(count: number): void {
  if (count <= maxAncestors) return;
  throw new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `the session would be below ${count} others, over the limit of ${maxAncestors}; create it higher up`,
    { field: "parent_session_id" },
  );
}

const maxAncestors = 64;

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

/** Opens the directory of `NAME` or `NAME/path`, which must lie inside the root after symlinks are resolved. */
async function openNamedWorkspace(workspaces: Readonly<Record<string, string>>, name: string): Promise<Workspace> {
  const rootName = workspaceRoot(name);
  const rootDirectory = Object.hasOwn(workspaces, rootName) ? workspaces[rootName] : undefined;
  if (rootDirectory === undefined)
    throw unknownWorkspace(name, `configured are: ${Object.keys(workspaces).join(", ")}`);
  try {
    const root = await openWorkspace(rootName, rootDirectory);
    if (name === rootName) return root;
    const directory = await root.resolve(name.slice(rootName.length + 1));
    if (directory.external) throw unknownWorkspace(name, "the directory is not inside its root");
    return await openWorkspace(name, directory.absolute);
  } catch (cause) {
    if (cause instanceof RequestError) throw cause;
    throw unknownWorkspace(name, "the directory does not exist", cause);
  }
}

/** Returns the name of the innermost of some roots that contains a directory, links resolved; undefined if none does. */
async function rootContaining(roots: readonly NamedRoot[], directory: string): Promise<string | undefined> {
  if (!isAbsolute(directory) || directory.includes("\0")) return undefined;
  const place = await realpath(directory).catch(() => undefined);
  return place === undefined ? undefined : rootAround(roots, place);
}

/** Name and directory of a workspace root. */
type NamedRoot = readonly [name: string, directory: string];

/** Returns the name of the innermost of some roots that contains a canonical path; undefined if none does. */
function rootAround(roots: readonly NamedRoot[], place: string): string | undefined {
  const holding = roots.filter(([, root]) => isWithin(place, root));
  return holding.sort(([, a], [, b]) => b.length - a.length)[0]?.[0];
}

function unknownWorkspace(workspace: string, why: string, cause?: unknown): RequestError {
  return new RequestError(ErrorReason.UNKNOWN_WORKSPACE, `workspace "${workspace}": ${why}`, { workspace }, { cause });
}

/** Access that a request needs: make calls (owner), cancel and close (owner, admin), or read. */
export type SessionAccess = "call" | "control" | "read";

/** True if the principal may read every session. */
export function readsAll({ roles }: Principal): boolean {
  return roles.has("approver") || roles.has("watcher") || roles.has("admin");
}

/** True if the principal has that access to the session. */
export function mayAccess(principal: Principal, session: Session, access: SessionAccess): boolean {
  if (principal.session !== undefined && principal.session !== session.id) return false;
  if (session.owner === principal.id) return true;
  if (access === "read") return readsAll(principal);
  return principal.roles.has("admin");
}

/** Returns the root of a session that the principal may read, or undefined for an unknown session if it may read all; throws otherwise. */
export async function readableRoot(
  store: Pick<SessionStore, "getSession">,
  principal: Principal,
  sessionId: string,
): Promise<string | undefined> {
  const session = await store.getSession(sessionId);
  if (session ? !mayAccess(principal, session, "read") : !readsAll(principal)) throw noSuchSession(sessionId);
  return session?.rootSessionId;
}
