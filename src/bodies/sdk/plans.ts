import { createHash } from "node:crypto";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import { type WorkerCall, type WorkerPlan, WorkerPlannedSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { canonicalJson, plainJson } from "../../core/json.ts";
import { within } from "../../core/within.ts";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import type { Plan, PlanContext, Tool } from "../../tool/tool.ts";
import type { Workspace } from "../../tool/workspace.ts";
import { messageOf } from "./message-of.ts";
import { checkedSize } from "./running-body.ts";

/** The tools of a process, and where they work. */
export interface BodySite {
  /** Returns a tool as it is for an agent. Throws if the process does not have it. */
  toolFor(name: string, agent: string): Promise<Tool>;
  /** Opens the workspace of a call. */
  workspaceOf(call: WorkerCall): Promise<Workspace>;
}

/** A call with everything that its body needs. */
export interface EnteredCall {
  readonly tool: Tool;
  readonly input: unknown;
  readonly plan: Plan;
  readonly context: PlanContext;
}

/** Plans of calls. */
export type Plans = ReturnType<typeof createPlans>;

export const maxTitleLength = 1_024;
/** Time that a plan may take. */
const planMs = 10_000;
/** Plans that are remembered until their call starts: their values, such as path handles, cannot be sent. */
const maxRemembered = 1_000;

/** Creates it, without plans. */
export function createPlans(site: BodySite) {
  const remembered = new Map<string, { digest: string; call: EnteredCall }>();
  return {
    /** Plans a call for the service; never throws. */
    async plan({ planId, call }: WorkerPlan): Promise<MessageInitShape<typeof WorkerPlannedSchema>> {
      try {
        if (!call) throw new Error("the service asks for the plan of no call");
        const entered = await within(planMs, planCall(site, call));
        const digest = digestOf(entered.plan);
        remembered.set(call.callId, { digest, call: entered });
        for (const first of remembered.keys()) if (remembered.size > maxRemembered) remembered.delete(first);
        const planned = { planId, detail: Buffer.from(digest), ...(await plannedOf(entered.plan)) };
        return checkedSize(WorkerPlannedSchema, planned);
      } catch (error) {
        return { planId, problem: messageOf(error) };
      }
    },
    /** Returns what the body of a call is entered with. Throws `ChangedAfterApproval` if its plan is not the one of `detail`. */
    async enter(call: WorkerCall, detail: Uint8Array): Promise<EnteredCall> {
      const known = remembered.get(call.callId);
      remembered.delete(call.callId);
      const approved = Buffer.from(detail).toString();
      if (known && known.digest === approved) return known.call;
      const entered = await planCall(site, call);
      // A tool that declares no plan has no detail: it asks for its whole input.
      if (approved === "" || digestOf(entered.plan) === approved) return entered;
      throw new ChangedAfterApproval(`the plan of ${call.tool} differs from the approved one; make the call again`);
    },
  };
}

async function planCall(site: BodySite, call: WorkerCall): Promise<EnteredCall> {
  const tool = await site.toolFor(call.tool, call.agent);
  const input = tool.decode(call.input ?? {});
  const context: PlanContext = {
    sessionId: call.sessionId,
    callId: call.callId,
    agent: call.agent,
    workspace: await site.workspaceOf(call),
    environment: async () => ({}),
    reads: { get: () => notHere("reads") },
    judge: Object.assign(() => notHere("judge"), {
      restrictedNameHints: () => notHere("judge"),
      fileRules: () => notHere("judge"),
    }),
  };
  return { tool, input, plan: await tool.plan(input, context), context };
}

/** Refuses a part of the context that only tools inside the service have. */
export function notHere(name: string): never {
  throw new ToolFailure(`ctx.${name} is not available here: the body runs outside of the service.`);
}

/** Digests what an approval of a plan is bound to. */
function digestOf(plan: Plan): string {
  const { title, asks, binds = [], cwd, env, searchPath, contentDigest, timeoutMs } = plan;
  const bound: JsonObject = plainJson({
    ...{ title, asks, cwd, env, searchPath, contentDigest, timeoutMs },
    binds: binds.map(({ absolute }) => absolute),
  });
  return createHash("sha256").update(canonicalJson(bound)).digest("hex");
}

async function plannedOf(plan: Plan): Promise<MessageInitShape<typeof WorkerPlannedSchema>> {
  const { title, asks, binds = [], timeoutMs = 0, questions } = plan;
  if (questions)
    throw new Error("the plan of a tool outside of the service cannot have questions: use ctx.question in execute");
  const inspection = await plan.inspect?.();
  const preview = inspection?.preview?.();
  return {
    title: title.slice(0, maxTitleLength),
    asks: asks.map(({ permission, patterns, always = [], metadata }) => ({
      ...{ permission, patterns: [...patterns], always: [...always] },
      ...(metadata && { metadata: plainJson(metadata) }),
    })),
    ...(preview && { preview }),
    binds: binds.map(({ absolute }) => absolute),
    timeoutMs,
  };
}
