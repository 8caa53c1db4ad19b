import { create } from "@bufbuild/protobuf";
import {
  type BeginCallRequest,
  type BeginCallResponse,
  BeginCallResponseSchema,
  BegunSchema,
  type FinishCallRequest,
  RefusedSchema,
  WaitingSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { BeginOutcome } from "../../call/begin.ts";
import { inputOf } from "../../call/state.ts";
import type { EdgeContext } from "./edge-context.ts";
import { callerOf, type SenderDomain } from "./sender.ts";
import { openPermissions } from "./tool-calls.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

/** Accepts a call that the sender runs itself, and returns the decision or, after `wait_ms`, what it waits for. */
export async function beginCallRpc(
  domain: Pick<ToolServiceDomain, "calls" | "store" | "asksOf"> & SenderDomain,
  request: BeginCallRequest,
  context: EdgeContext,
): Promise<BeginCallResponse> {
  const { signal, trace } = context;
  const decided = await domain.calls.begin(await callerOf(domain, context), request, signal, trace);
  const outcome = await outcomeOf(domain, decided);
  return create(BeginCallResponseSchema, { outcome, storeId: domain.store.storeIdOf(decided.root) });
}

async function outcomeOf(
  { asksOf }: Pick<ToolServiceDomain, "asksOf">,
  decided: BeginOutcome,
): Promise<BeginCallResponse["outcome"]> {
  switch (decided.case) {
    case "begun": {
      const { assignment, part } = decided;
      const { callId, sessionId } = part;
      return { case: "begun", value: create(BegunSchema, { assignment, input: inputOf(part), callId, sessionId }) };
    }
    case "refused":
      return { case: "refused", value: create(RefusedSchema, decided) };
    case "waiting": {
      const { ref, part } = decided;
      const permissions = part.permissionIds.length === 0 ? [] : await openPermissions(asksOf, ref);
      return { case: "waiting", value: create(WaitingSchema, { permissions, lastSeq: part.revision }) };
    }
  }
}

/** Records the result that the host of a call reports. */
export async function finishCallRpc(
  { calls }: Pick<ToolServiceDomain, "calls">,
  request: FinishCallRequest,
  { principal }: EdgeContext,
) {
  return { part: await calls.finish(principal, request) };
}
