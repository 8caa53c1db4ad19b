import { create } from "@bufbuild/protobuf";
import {
  type AuditEntry,
  type DecisionFacts,
  DecisionKind,
  type DecisionRecord,
  DecisionRecordSchema,
  type Grant,
  type PermissionDecision,
  type PermissionEscalation,
  type PermissionSettled,
  type PolicyShadow,
  RecordedNeedSchema,
  type Vote,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Principal } from "../core/principal.ts";
import { noSuchSession } from "../core/request-error.ts";
import { displayPattern } from "../policy/display.ts";
import type { AskRecord, PermissionStore } from "./ports.ts";

/** The fields by which the audit identifies a call. */
export interface DecidedCall {
  part: Pick<ToolPart, "sessionId" | "callId" | "tool" | "agent" | "requester">;
  /** The principal that made it. */
  principal: string;
}

/** Builds the record of a decision on a call, by rules and grants or by the permission requests that `permissionIds` or `asks` name. */
export function decisionOn(
  { part, principal }: DecidedCall,
  kind: DecisionKind,
  about: {
    digest: string;
    decisions: readonly PermissionDecision[];
    permissionIds?: readonly string[];
    asks?: readonly Pick<PermissionRequest, "id" | "need">[];
    facts?: DecisionFacts | undefined;
    shadow?: PolicyShadow | undefined;
  },
): DecisionRecord {
  const { sessionId, callId, tool, agent, requester } = part;
  const { asks = [] } = about;
  return create(DecisionRecordSchema, {
    ...{ kind, sessionId, callId, tool, agent, requester, principal },
    digest: about.digest,
    decisions: about.decisions.map(readable),
    permissionIds: [...(about.permissionIds ?? asks.map(({ id }) => id))],
    needs: asks.flatMap(({ id: permissionId, need }) =>
      need ? create(RecordedNeedSchema, { permissionId, need }) : [],
    ),
    ...(about.facts && { facts: about.facts }),
    ...(about.shadow && { shadow: { ...about.shadow, ...readableIn(about.shadow) } }),
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
    const record = decisionOn(ask, DecisionKind.SETTLED, { digest, decisions, asks: [ask.request] });
    const saved = grants.filter(({ permissionId }) => permissionId === id);
    const { by, person, method } = end;
    return { ...record, by, ...(person && { person }), method, settled: end, grants: saved };
  });
}

/** Builds the record of the last of these votes, which left its ask open. */
export function voteRecord(ask: AskRecord, votes: readonly Vote[]): DecisionRecord {
  const { digest } = ask.request;
  const record = decisionOn(ask, DecisionKind.VOTED, { digest, decisions: [], asks: [ask.request] });
  const vote = votes.at(-1);
  if (vote === undefined) return record;
  const { by, person, method } = vote;
  return { ...record, by, ...(person && { person }), method, vote };
}

/** Builds the record of the steps that an ask takes. */
export function escalationRecord(ask: AskRecord, due: readonly PermissionEscalation[]): DecisionRecord {
  const { digest, id } = ask.request;
  const record = decisionOn(ask, DecisionKind.ESCALATED, { digest, decisions: [], permissionIds: [id] });
  return { ...record, escalations: [...due] };
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

const readableIn = ({ decision }: PolicyShadow) => (decision ? { decision: readable(decision) } : {});

function readable(decision: PermissionDecision): PermissionDecision {
  const text = displayPattern(decision.permission, decision.pattern);
  const left = text.length - maxPatternLength;
  const pattern = left > 0 ? `${text.slice(0, maxPatternLength)}… (${left} more characters)` : text;
  return { ...decision, pattern };
}

/** Reads the audit: the decisions of a session tree, also of one that is gone. */
export type AuditReader = ReturnType<typeof createAuditReader>;

/**
 * Creates the reader of the audit. `readableRoot` is the access check: it returns the root of a session that the principal
 * may read, undefined for an unknown session if the principal may read all, and throws otherwise.
 */
export function createAuditReader({
  store,
  readableRoot,
}: {
  store: Pick<PermissionStore, "listDecisions" | "listAudits">;
  readableRoot(principal: Principal, sessionId: string): Promise<string | undefined>;
}) {
  return {
    /** The roots of trees that are gone, newest first. */
    gone: store.listAudits,
    /** The chain of the tree that holds a session, oldest first. */
    async list(
      principal: Principal,
      { sessionId, afterSeq, limit }: { sessionId: string; afterSeq: number; limit: number },
    ): Promise<AuditEntry[]> {
      const root = await readableRoot(principal, sessionId);
      // The audit outlives its sessions: an unknown ID may be the root of a tree that is gone.
      const entries = await store.listDecisions({ root: root ?? sessionId, afterSeq, limit });
      if (root !== undefined || entries.length > 0 || afterSeq > 0) return entries;
      throw noSuchSession(sessionId);
    },
  };
}
