import { hash } from "node:crypto";
import { realpath } from "node:fs/promises";
import { basename, resolve } from "node:path";
import { create } from "@bufbuild/protobuf";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { BeginCallRequest } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import type { Engine } from "./engine.ts";
import type { Delegation } from "./ports.ts";
import type { OpenSession } from "./sessions.ts";
import { provesSharedDisk } from "./shared-disk.ts";

/** The session of an agent and the place where its call runs. */
export interface HostedSession {
  opened: OpenSession;
  place: Pick<Delegation, "directory" | "isDiskShared">;
}

/** Finds the session of a foreign session, and creates it and its parent on first sight. Throws UNKNOWN_WORKSPACE if the directory lies in none of the principal's. */
export async function openHostedSession(
  engine: Engine,
  principal: Principal,
  request: BeginCallRequest,
): Promise<HostedSession> {
  const isDiskShared = await provesSharedDisk(request);
  const directory = isDiskShared ? await realpath(request.cwd) : resolve(request.cwd);
  const workspace = engine.sessions.workspaceAt(principal, directory);
  const { own, parent } = identityOf(principal.id, request);
  const about = { principal, workspace, directory, request };
  if (parent !== undefined) await ensureSession(engine, about, { id: parent });
  await ensureSession(engine, about, { id: own, parent, agent: request.foreignAgent });
  return { opened: await engine.sessions.open(principal, own, "call"), place: { directory, isDiskShared } };
}

/** Derives session ids. A subagent has a private foreign session, or shares that of the agent that started it. */
function identityOf(
  principal: string,
  { kind, foreignSession, foreignParent, foreignAgent }: BeginCallRequest,
): { own: string; parent?: string } {
  const idOf = (...names: string[]) =>
    `ses_${hash("sha256", JSON.stringify([principal, kind, ...names]), "base64url").slice(0, 40)}`;
  if (foreignParent !== "") return { own: idOf(foreignSession), parent: idOf(foreignParent) };
  if (foreignAgent === "") return { own: idOf(foreignSession) };
  return { own: idOf(foreignSession, foreignAgent), parent: idOf(foreignSession) };
}

/** Creates a session unless it exists: a session stays in the workspace in which it was first seen. */
async function ensureSession(
  { sessions }: Engine,
  {
    principal,
    workspace,
    directory,
    request: { kind, foreignSession },
  }: { principal: Principal; workspace: string; directory: string; request: BeginCallRequest },
  { id, parent = "", agent = "" }: { id: string; parent?: string | undefined; agent?: string },
): Promise<void> {
  if (await sessions.find(id)) return;
  // The kind of agent is in `requester`, which views show beside the title.
  const title = `${basename(directory) || directory}${agent === "" ? "" : `, ${agent}`}`;
  const [first = "build"] = principal.agents;
  await sessions.create(
    principal,
    create(CreateSessionRequestSchema, {
      sessionId: id,
      parentSessionId: parent,
      workspace: parent === "" ? workspace : "",
      agent: first === "*" ? "" : first,
      title,
      metadata: { foreignSession },
      requester: { kind, place: directory, subagent: agent },
    }),
  );
}
