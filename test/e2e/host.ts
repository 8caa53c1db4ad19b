import { createHash, randomBytes } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type BeginCallRequestSchema,
  type BeginCallResponse,
  type Begun,
  type Refused,
  ToolService,
  type Waiting,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { clientOf } from "./clients.ts";
import type { Service } from "./service.ts";

/** Tokens of hosts, for the top of a toolgate.toml. */
export const hostTokens = ["host", "other-host"]
  .map((id) => `[[token]]\nid = "${id}"\nroles = ["host"]\nvalue = "${id}-token-for-tests"\n`)
  .join("");

/** Fields of a request that a test sets. */
export type Use = MessageInitShape<typeof BeginCallRequestSchema>;

/** An agent with its own tools, in one foreign session. */
export function hostOf(service: Pick<Service, "url" | "workspace">, foreignSession: string, id = "host") {
  const token = `${id}-token-for-tests`;
  const tools = clientOf(ToolService, service.url, token);
  const permissions = clientOf(PermissionService, service.url, token);

  /** Sends one request, with a nonce file unless `noncePath` is given. */
  async function send(tool: string, input: JsonObject, use: Use = {}, signal?: AbortSignal) {
    const cwd = use.cwd ?? service.workspace;
    const kind = use.kind ?? "claude";
    const nonce = randomBytes(16).toString("hex");
    const noncePath = join(cwd, `.toolgate-nonce-${nonce}`);
    const session = use.foreignSession ?? foreignSession;
    const content = createHash("sha256").update(`${kind}\n${session}\n${nonce}`).digest("hex");
    if (use.noncePath === undefined) await writeFile(noncePath, content).catch(() => undefined);
    const named = { kind, foreignSession, foreignTool: tool, input, cwd, noncePath };
    try {
      return await tools.beginCall({ ...named, ...use }, signal && { signal });
    } finally {
      await rm(noncePath, { force: true });
    }
  }

  return {
    tools,
    permissions,
    send,
    begun: async (...request: Parameters<typeof send>): Promise<Begun> => outcomeOf(await send(...request), "begun"),
    refused: async (...request: Parameters<typeof send>): Promise<Refused> =>
      outcomeOf(await send(...request), "refused"),
    waiting: async (tool: string, input: JsonObject, use: Use = {}): Promise<Waiting> =>
      outcomeOf(await send(tool, input, { waitMs: 0, ...use }), "waiting"),
  };
}

/** Returns the outcome of a response, which must be the named one. */
export function outcomeOf<Case extends keyof Outcomes>({ outcome }: BeginCallResponse, wanted: Case): Outcomes[Case] {
  if (outcome.case !== wanted) {
    const text = JSON.stringify(outcome.value, (_, value) => (typeof value === "bigint" ? String(value) : value));
    throw new Error(`the outcome is ${outcome.case}, not ${wanted}: ${text}`);
  }
  return outcome.value as Outcomes[Case];
}

interface Outcomes {
  begun: Begun;
  refused: Refused;
  waiting: Waiting;
}

/** Answers the first open request of a waiting call, by default with once. */
export async function answerFirst(
  approver: Client<typeof PermissionService>,
  { permissions }: Pick<Waiting, "permissions">,
  answer: Parameters<typeof approver.respondToPermission>[0] = {},
): Promise<void> {
  const [{ id: permissionId, sessionId } = { id: "", sessionId: "" }] = permissions;
  await approver.respondToPermission({ permissionId, sessionId, reply: PermissionReply.ONCE, ...answer });
}

/** Digest of an input, as hosts report it. */
export function inputDigest(input: JsonObject): string {
  return createHash("sha256").update(canonicalJson(input)).digest("hex");
}
