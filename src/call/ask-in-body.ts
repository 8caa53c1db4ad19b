import {
  PermissionAction,
  type PermissionDecision,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { UnapprovedAsk } from "../approval/judge-asks.ts";
import type { Ask } from "../core/ask.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import { approvalDigest } from "./approval-digest.ts";
import { resolvePlanPaths } from "./ask-paths.ts";
import {
  askHooks,
  checkApproved,
  isAskApproved,
  openPermissionRequests,
  requestFor,
  waitUntilSettled,
} from "./asks.ts";
import { noteCall, refreshCall } from "./call-record.ts";
import { allowedRecord } from "./decision-records.ts";
import { denied } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { expandAsks } from "./planning.ts";
import { type Running, subjectOf } from "./running.ts";
import { outsideSlot } from "./slots.ts";
import { inputOf } from "./state.ts";

/** Decides an ask from a running body and waits for its settlement. The ask ends with this replica, as the call does. */
export async function askInBody(engine: Engine, call: Running, tool: Tool, approved: Plan, ask: Ask): Promise<void> {
  const { workspace } = call.opened;
  const subject = subjectOf(call, tool);
  const layers = engine.layersFor(subject);
  const plan = await resolvePlanPaths(
    { title: "", asks: [ask], ...(ask.cwd !== undefined && { cwd: ask.cwd }) },
    workspace,
  );
  const asks = await expandAsks(engine, call.record.spec.principal, plan.asks, layers, workspace);
  const verdict = await engine.permissions.decide(asks, subject, { layers });
  if (verdict.action === PermissionAction.DENY) throw denied(verdict);
  const recordAllowed = (why?: string) =>
    noteCall(engine, call.fence, { decisions: [allowedRecord(call.record, { verdict }, [], why)] });
  if (verdict.action === PermissionAction.ALLOW) return await recordAllowed();
  const whole = approved.asks.filter(({ wholeCall }) => wholeCall).map(({ permission }) => permission);
  const isCovered = coversBody(call, approved)
    ? (ask: UnapprovedAsk) => isUnruled(ask, verdict.decisions)
    : () => false;
  const unapproved = verdict.unapproved.filter((each) => !whole.includes(each.permission) && !isCovered(each));
  if (unapproved.length === 0) return await recordAllowed("the call was allowed as a whole");
  const digest = await approvalDigest(engine, tool, inputOf(call.record.part), plan, call.opened);
  const unasked = await askHooks(call, unapproved, plan, digest);
  if (unasked.length === 0) return await recordAllowed();
  const requests = unasked.map((each) => requestFor(engine, call, { ask: each, plan, verdict }, { subject, digest }));
  do await refreshCall(engine, call);
  while (!(await openPermissionRequests(engine, call, requests, { ...verdict, rulesVersion: undefined }, [])));
  const wait = () => waitUntilSettled(engine, call);
  // A body that may be refused works meanwhile, and may end before the answer.
  await (ask.refusable ? wait() : outsideSlot(engine, call, wait));
  for (const request of requests) checkApproved(call, request, { endsCall: !ask.refusable });
}

/** True if an approver answered an ask of this call that covers what its body asks. */
function coversBody({ asks = [] }: Running, approved: Plan): boolean {
  const covering = approved.asks.flatMap((ask) => (ask.coversBody ? ask.permission : []));
  return asks.some((asked) => covering.includes(asked.request.permission) && isAskApproved(asked, asks));
}

/** True if an ask only asks because no rule says anything about it. Directories outside the workspace are asked for each time. */
function isUnruled({ permission, patterns }: UnapprovedAsk, decisions: readonly PermissionDecision[]): boolean {
  return (
    permission !== "external_directory" &&
    decisions
      .filter((decision) => decision.action === PermissionAction.ASK && decision.permission === permission)
      .every(({ pattern, reasonCode }) => patterns.includes(pattern) && reasonCode === PermissionReason.NO_RULE)
  );
}
