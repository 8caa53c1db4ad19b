import { setTimeout as sleep } from "node:timers/promises";
import { type ListToolsResult, ProtocolError, ProtocolErrorCode, type Tool } from "@modelcontextprotocol/server";
import type { ToolDefinition } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import type { McpSession } from "./mcp-session.ts";
import { waitToolName } from "./open-call-result.ts";
import type { ToolgateApi } from "./toolgate-api.ts";

/** Maximum number of tools on a page; large, since some clients read the first page only. */
const pageSize = 250;
/** Time for which a client may use a list without asking again; it may subscribe to changes. */
const ttlMs = 5_000;

/**
 * Lists the tools that the agent of a session may see, by name, in pages. Output schemas are left out: clients refuse a result
 * without structured output from a tool that has one, and a call that waits, or whose output is truncated, has none.
 */
export async function listMcpTools(
  api: ToolgateApi,
  session: McpSession,
  cursor: string | undefined,
): Promise<ListToolsResult> {
  const tools = await allTools(api, session);
  const after = cursor === undefined ? "" : nameIn(cursor);
  const [page, rest] = splitAt(
    tools.filter(({ name }) => name > after),
    pageSize,
  );
  const last = page.at(-1);
  return {
    tools: page,
    ...(last !== undefined && rest.length > 0 && { nextCursor: Buffer.from(last.name).toString("base64url") }),
    ttlMs,
    cacheScope: "private",
  };
}

/** Lists all tools, in the order of their names. */
async function allTools({ tools }: ToolgateApi, { sessionId, failed }: McpSession): Promise<Tool[]> {
  const listing = Array.fromAsync(pagesOf((page) => tools.listTools({ ...page, sessionId })));
  const pages = await listing.catch((error: unknown) => {
    failed?.(error);
    throw error;
  });
  const listed = pages.flatMap((page) => page.tools);
  const own = listed.filter(({ name }) => name !== waitToolName).map(mcpTool);
  return [...own, waitTool].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function mcpTool({ name, description, inputSchema, annotations, definitionId }: ToolDefinition): Tool {
  return {
    name,
    description,
    inputSchema: { ...inputSchema, type: "object" },
    annotations: {
      readOnlyHint: annotations?.readOnly ?? false,
      destructiveHint: annotations?.destructive ?? false,
      idempotentHint: annotations?.idempotent ?? false,
      openWorldHint: annotations?.openWorld ?? false,
    },
    _meta: { "toolgate/definitionId": definitionId },
  };
}

const waitTool: Tool = {
  name: waitToolName,
  description:
    "Wait for the result of a call that waits for approval or still runs. Use it when a result says so, with the call_id that it names.",
  inputSchema: {
    type: "object",
    properties: { call_id: { type: "string", description: "The call_id that the result names", minLength: 1 } },
    required: ["call_id"],
    additionalProperties: false,
  },
  annotations: { readOnlyHint: true, destructiveHint: false, idempotentHint: true, openWorldHint: false },
};

function nameIn(cursor: string): string {
  const name = Buffer.from(cursor, "base64url").toString();
  if (/^[A-Za-z0-9_-]{1,128}$/.test(name)) return name;
  throw new ProtocolError(
    ProtocolErrorCode.InvalidParams,
    "the cursor is not one of this server; list from the beginning",
  );
}

function splitAt<T>(items: readonly T[], at: number): [T[], T[]] {
  return [items.slice(0, at), items.slice(at)];
}

const everyMs = 5_000;
/** Interval while the service does not answer. */
const retryMs = 1_000;

/**
 * Reports each change of the list of tools, until the signal is aborted. A service that could not be reached at first, and now
 * can, is a change: the client has no list yet.
 */
export async function watchToolList(
  { api, session, onChange }: { api: ToolgateApi; session: () => Promise<McpSession>; onChange: () => Promise<void> },
  signal: AbortSignal,
): Promise<void> {
  let known: string | undefined;
  let isFirst = true;
  while (!signal.aborted) {
    const list = await session()
      .then(async (opened) => JSON.stringify(await allTools(api, opened)))
      .catch(() => undefined);
    if (list !== undefined && list !== known && !isFirst) await onChange().catch(() => undefined);
    known = list ?? known;
    isFirst = false;
    const pauseMs = list === undefined ? retryMs : everyMs;
    await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => undefined);
  }
}
