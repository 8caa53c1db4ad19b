import { hash } from "node:crypto";
import type { Client } from "@connectrpc/connect";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { answerClaude, denyClaude, ownClaudeTool } from "../../agents/hooks/claude.ts";
import { type ClaudeHook, readClaudeHook } from "../../agents/hooks/claude-hook.ts";
import {
  AlreadyBegunError,
  type DecisionMemory,
  type DelegatedCalls,
  type UseDecision,
} from "../../agents/hooks/delegate.ts";
import { waitToolName } from "../../agents/mcp/open-call-result.ts";
import { apiFailureText, reasonOf } from "../../agents/mcp/toolgate-api.ts";
import { createBoundedMap, forEachPrincipal } from "../../core/bounded-map.ts";
import { jsonLength } from "../../core/json.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { checkRole, rolesFor } from "../api/access.ts";
import { invalidField } from "../api/request-failure.ts";
import { type EntryOptions, enterDoor, isJson } from "../http/enter-door.ts";
import {
  type ConnectionPeer,
  createConnectionPeer,
  type Mount,
  type Request,
  type Response,
  sendWhole,
} from "../http/handler.ts";
import type { ByteBudget } from "../http/socket-limits.ts";
import { createLocalApi, type LocalApiOptions } from "../mcp/local-api.ts";
import { bodyLimits, readBody } from "../rpc/request-body.ts";

/** Options of the door. */
export interface HookDoorOptions extends LocalApiOptions, EntryOptions {
  budget: ByteBudget;
}

/** State that all requests of the door share. */
interface HookDoor extends HookDoorOptions {
  apiOf: ReturnType<typeof createLocalApi>;
  peerOf: ConnectionPeer;
  memoryOf: (principalId: string) => DecisionMemory;
}

/**
 * Opens the door for the HTTP hooks of Claude Code: `/hooks/claude`. Claude Code runs a tool whose hook answers with another status
 * than 200, unless the hook is configured to block, so every failure is a denial with status 200.
 */
export function hookDoor(options: HookDoorOptions): Mount[] {
  const door = {
    ...options,
    ...{ apiOf: createLocalApi(options), peerOf: createConnectionPeer(), memoryOf: createDecisionStore() },
  };
  const handle = (request: Request, response: Response) => {
    let hook: ClaudeHook | undefined;
    const read = (body: Buffer) => {
      hook = readClaudeHook(body.toString());
      return hook;
    };
    answerHook(door, request, response, read)
      .catch((error: unknown) => {
        const text =
          reasonOf(error) === undefined ? door.failures.failureOf(error, path).message : apiFailureText(error);
        return denyClaude(hook?.event ?? "PreToolUse", `Toolgate: ${text}. Nothing was run.`);
      })
      .then((answer) => sendWhole(response, 200, "application/json", JSON.stringify(answer)))
      // The connection is gone.
      .catch(() => response.destroy());
  };
  return [{ path, methods: ["POST"], handle }];
}

const path = "/hooks/claude";

async function answerHook(door: HookDoor, request: Request, response: Response, read: (body: Buffer) => ClaudeHook) {
  const { apiOf, peerOf, memoryOf, shutdownSignal } = door;
  const { principal, signal: left } = enterDoor(door, request, response, path);
  checkRole(principal, rolesFor(ToolService.method.beginCall), path);
  if (!isJson(request)) throw invalidField("content-type", "the content type must be application/json");
  const hook = read(await readBody(request, bodyLimits(door)));
  // A hook that is held is denied before the end of a drain cuts its connection.
  const signal = AbortSignal.any([left, shutdownSignal]);
  const { tools } = apiOf({ principal, peer: () => peerOf(request) });
  const query = new URL(request.url ?? "", "http://localhost").searchParams;
  const context = {
    calls: callsOf(tools, signal),
    memory: memoryOf(principal.id),
    endsAt: performance.now() + waitMs(query.get("timeout")),
    async isOwnTool(tool: string) {
      const name = ownClaudeTool(tool, query.get("mcp") ?? "");
      if (name === undefined) return false;
      if (name === waitToolName) return true;
      for await (const page of pagesOf((page) => tools.listTools(page)))
        if (page.tools.some((each) => each.name === name)) return true;
      return false;
    },
  };
  return await answerClaude(context, hook);
}

function callsOf(tools: Client<typeof ToolService>, signal: AbortSignal): DelegatedCalls {
  return {
    async begin(request) {
      try {
        return await tools.beginCall(request, { signal });
      } catch (error) {
        throw reasonOf(error) === "ALREADY_BEGUN" ? new AlreadyBegunError(apiFailureText(error)) : error;
      }
    },
    finish: (request) => tools.finishCall(request, { signal }),
  };
}

/** Returns the time for a decision: the agent's limit in seconds, by default that of `toolgate connect`, less a margin. */
function waitMs(timeout: string | null): number {
  const seconds = timeout === null ? 660 : Number(timeout);
  return Number.isFinite(seconds) ? Math.max(seconds * 1_000 - 5_000, 1_000) : 1_000;
}

/** Remembered decisions of one principal; the oldest is forgotten first, so that its result is not reported. */
const maxDecisions = { maxCount: 10_000, maxLength: 32 * 1024 * 1024 };

/**
 * Creates the memory of the decisions that this replica sent to hooks, separate for each principal. It ends with the process: calls
 * whose report comes later end NOT_REPORTED.
 */
export function createDecisionStore(now: () => number = Date.now): (principalId: string) => DecisionMemory {
  type Decided = { decision: UseDecision; at: number };
  const decisionsOf = forEachPrincipal(
    () => createBoundedMap<Decided>(maxDecisions, ({ decision }) => jsonLength(decision)),
    now,
  );
  // A key may name the whole input of a use.
  const keyOf = (key: string) => hash("sha256", key, "hex");
  return (principalId) => {
    const decisions = decisionsOf(principalId);
    return {
      async put(key, decision) {
        decisions.set(keyOf(key), { decision, at: now() });
      },
      async get(key) {
        const found = decisions.get(keyOf(key));
        return found && { decision: found.decision, ageMs: now() - found.at };
      },
      async remove(key) {
        decisions.delete(keyOf(key));
      },
    };
  };
}
