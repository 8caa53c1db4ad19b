import { create } from "@bufbuild/protobuf";
import {
  DecisionKind,
  type DecisionRecord,
  DecisionRecordSchema,
  type Grant,
  type PermissionDecision,
  type PermissionSettled,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Principal } from "../core/principal.ts";
import { displayPattern } from "../policy/display.ts";
import type { AskRecord } from "./ports.ts";

/** The fields by which the audit identifies a call. */
export interface DecidedCall {
  part: Pick<ToolPart, "sessionId" | "callId" | "tool" | "agent" | "requester">;
  /** The principal that made it. */
  principal: string;
}

/** Builds the record of a decision on a call, by rules and grants or by the permission requests that `permissionIds` names. */
export function decisionOn(
  { part, principal }: DecidedCall,
  kind: DecisionKind,
  about: { digest: string; decisions: readonly PermissionDecision[]; permissionIds?: readonly string[] },
): DecisionRecord {
  const { sessionId, callId, tool, agent, requester } = part;
  return create(DecisionRecordSchema, {
    ...{ kind, sessionId, callId, tool, agent, requester, principal },
    digest: about.digest,
    decisions: about.decisions.map(readable),
    permissionIds: [...(about.permissionIds ?? [])],
  });
}

/** Builds the records of how asks ended. */
export function settlementRecords(
  asks: readonly AskRecord[],
  settled: readonly PermissionSettled[],
  grants: readonly Grant[],
): DecisionRecord[] {
  return settled.flatMap((end) => {
    const ask = asks.find(({ request }) => request.id === end.permissionId);
    if (!ask) return [];
    const { digest, decisions, id } = ask.request;
    const record = decisionOn(ask, DecisionKind.SETTLED, { digest, decisions, permissionIds: [id] });
    const saved = grants.filter(({ permissionId }) => permissionId === id);
    const { by, person, method } = end;
    return { ...record, by, ...(person && { person }), method, settled: end, grants: saved };
  });
}

/** The principal that decides about a grant. */
export type Decider = Pick<Principal, "id" | "identity">;

/** Builds the record of a revoked grant. */
export function revocationRecord(grant: Grant, { id: by, identity }: Decider): DecisionRecord {
  const { sessionId, tool, agent } = grant;
  const about = { sessionId, tool, agent, grants: [grant] };
  return create(DecisionRecordSchema, { kind: DecisionKind.REVOKED, ...about, by, ...identity });
}

/** Builds the record of a confirmed grant. */
export function confirmationRecord(grant: Grant, by: Decider): DecisionRecord {
  return { ...revocationRecord(grant, by), kind: DecisionKind.CONFIRMED };
}

const maxPatternLength = 2_000;

function readable(decision: PermissionDecision): PermissionDecision {
  const text = displayPattern(decision.permission, decision.pattern);
  const left = text.length - maxPatternLength;
  const pattern = left > 0 ? `${text.slice(0, maxPatternLength)}… (${left} more characters)` : text;
  return { ...decision, pattern };
}
