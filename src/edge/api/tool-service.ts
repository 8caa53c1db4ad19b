import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { ToolErrorReason as Reason, type ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import {
  CallToolResponseSchema,
  ExecuteToolResponseSchema,
  type GetServerInfoResponse,
  GetServerInfoResponseSchema,
  GetToolStatsResponseSchema,
  type Limits,
  OnDisconnect,
  PlanProblemSchema,
  PlanToolResponseSchema,
  type ToolService,
  UnattendedPolicy,
  WatchSessionResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { AskRecord } from "../../approval/ports.ts";
import type { Calls } from "../../call/calls.ts";
import type { Planner } from "../../call/planner.ts";
import type { CallStore } from "../../call/ports.ts";
import type { Reader } from "../../call/reader.ts";
import { isTerminal } from "../../call/state.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Principal } from "../../core/principal.ts";
import { createEmbed } from "../rpc/embed.ts";
import { principalOf } from "./access.ts";
import { traceContextOf } from "./trace-context.ts";

/** ToolService over the domain: check, call, shape the answer. WatchMany is made of it and of PermissionService. */
export function toolService({
  calls,
  planner,
  reader,
  store,
  asksOf,
  stats,
  custom,
  about,
}: {
  calls: Calls;
  planner: Planner;
  reader: Reader;
  store: Pick<CallStore, "storeId" | "bytesOf">;
  asksOf(call: CallRef): Promise<AskRecord[]>;
  stats(): MessageInitShape<typeof GetToolStatsResponseSchema>;
  custom: {
    refresh(): Promise<void>;
    problems(workspace: string): { path: string; line: number; reason: string }[];
  };
  about: {
    version: string;
    workspaces: string[];
    agentsOf(principal: Principal): { agent: string; description: string }[];
    limits: Limits;
    unattended: "wait" | "deny";
    sandbox: Pick<GetServerInfoResponse, "sandbox" | "sandboxNetwork" | "sandboxProblem">;
  };
}): Omit<ServiceImpl<typeof ToolService>, "watchMany"> {
  const embed = createEmbed(store);

  async function openAsks(ref: CallRef) {
    return (await asksOf(ref)).filter(({ settled }) => !settled).map(({ request }) => request);
  }

  /** Cancels the call if the client leaves, where it asked for that; a drain is no leaving. */
  function cancelOnLeave(
    principal: Principal,
    { sessionId, callId }: CallRef,
    onDisconnect: OnDisconnect,
    signal: AbortSignal,
  ) {
    if (onDisconnect !== OnDisconnect.CANCEL) return () => undefined;
    const leave = () => {
      // Nobody is left to be told of a failure; the call's own deadline remains.
      if (!calls.isDraining)
        calls.cancel(principal, sessionId, callId, "The caller disconnected.").catch(() => undefined);
    };
    signal.addEventListener("abort", leave, { once: true });
    return () => signal.removeEventListener("abort", leave);
  }

  return {
    async listTools(request, ctx) {
      await custom.refresh();
      const { tools, workspace } = await planner.tools(principalOf(ctx), request);
      return { tools, problems: custom.problems(workspace) };
    },

    async planTool(request, ctx) {
      const { title, verdict, asks, preview, problem } = await planner.plan(principalOf(ctx), request);
      return create(PlanToolResponseSchema, {
        title,
        action: verdict.action,
        asks,
        decisions: verdict.decisions,
        ...(preview && { preview }),
        ...(problem && {
          problem: create(PlanProblemSchema, {
            reason: Reason.FAILED satisfies ToolErrorReason,
            message: problem.message,
          }),
        }),
      });
    },

    async callTool(request, ctx) {
      const principal = principalOf(ctx);
      const { record } = await calls.open(principal, request, traceContextOf(ctx.requestHeader));
      const stay = cancelOnLeave(principal, record.ref, request.onDisconnect, ctx.signal);
      try {
        const { ref, part } = await calls.wait(record, request.waitMs ?? 30_000, ctx.signal);
        const permissions = isTerminal(part) || part.permissionIds.length === 0 ? [] : await openAsks(ref);
        const answer = create(CallToolResponseSchema, { permissions, lastSeq: part.revision, storeId: store.storeId });
        return embed.part(ctx, answer, CallToolResponseSchema.field.part, part);
      } finally {
        stay();
      }
    },

    async *executeTool(request, ctx) {
      const principal = principalOf(ctx);
      const call = await calls.open(principal, request, traceContextOf(ctx.requestHeader));
      const stay = cancelOnLeave(principal, call.record.ref, request.onDisconnect, ctx.signal);
      try {
        let storeId = store.storeId;
        for await (const followed of calls.events(call, sequence(request.afterSeq), ctx.signal)) {
          const { event, lastSeq } = followed;
          const answer = create(ExecuteToolResponseSchema, { lastSeq: BigInt(lastSeq), storeId });
          yield embed.event(ctx, answer, ExecuteToolResponseSchema.field.event, event);
          storeId = "";
        }
      } finally {
        stay();
      }
    },

    async cancelTool({ sessionId, callId, message }, ctx) {
      return { part: await calls.cancel(principalOf(ctx), sessionId, callId, message) };
    },

    async getToolPart({ sessionId, callId }, ctx) {
      const { record } = await calls.getRecord(principalOf(ctx), sessionId, callId, "read");
      return {
        part: record.part,
        permissions: record.part.permissionIds.length === 0 ? [] : await openAsks(record.ref),
      };
    },

    async listToolParts({ sessionId, pageSize, pageToken }, ctx) {
      const limit = pageSize || 100;
      const page = await calls.list(principalOf(ctx), { sessionId, limit, ...(pageToken && { after: pageToken }) });
      return {
        parts: page.map(({ part }) => part),
        nextPageToken: page.length < limit ? "" : (page.at(-1)?.ref.callId ?? ""),
      };
    },

    async readToolOutput(request, ctx) {
      return await reader.read(principalOf(ctx), request);
    },

    async *watchSession({ sessionId, afterSeq, callId, snapshot }, ctx) {
      const watch = { sessionId, afterSeq: sequence(afterSeq), snapshot, callId: callId || undefined };
      let storeId = store.storeId;
      for await (const { event, lastSeq, snapshotEnd = false } of calls.watch(principalOf(ctx), watch, ctx.signal)) {
        const answer = create(WatchSessionResponseSchema, { lastSeq: BigInt(lastSeq), snapshotEnd, storeId });
        yield embed.event(ctx, answer, WatchSessionResponseSchema.field.event, event);
        storeId = "";
      }
    },

    getToolStats: () => create(GetToolStatsResponseSchema, stats()),

    getServerInfo(_request, ctx) {
      const principal = principalOf(ctx);
      const agents = about.agentsOf(principal);
      return create(GetServerInfoResponseSchema, {
        version: about.version,
        storeId: store.storeId,
        ...about.sandbox,
        limits: about.limits,
        workspaces: about.workspaces,
        agents: agents.map(({ agent }) => agent),
        agentDetails: agents.map((details) => ({ ...details, canAsk: planner.asking(details.agent) })),
        unattended: about.unattended === "deny" ? UnattendedPolicy.DENY : UnattendedPolicy.WAIT,
        principal: principal.id,
        roles: [...principal.roles],
      });
    },
  };
}

/** A number of a log; what is over the largest safe integer is beyond the end of every log. */
function sequence(seq: bigint): number {
  return Number(seq);
}
