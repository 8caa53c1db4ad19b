import { DecisionKind, type DecisionRecord, PermissionOutcome } from "../../../gen/opencode/tool/v1/permission_pb.ts";

/** Which decisions are wanted; empty is all. */
export interface DecisionFilter {
  readonly outcome: string;
  readonly tool: string;
  readonly principal: string;
}

/** How decisions end, by the words of the filter. */
export const outcomes: Readonly<Record<string, (record: DecisionRecord) => boolean>> = {
  ran: ({ kind }) => kind === DecisionKind.ALLOWED,
  denied: (record) => record.kind === DecisionKind.DENIED || settledAs(record, PermissionOutcome.DENIED),
  asked: ({ kind }) => kind === DecisionKind.ASKED,
  approved: (record) => settledAs(record, PermissionOutcome.ONCE, PermissionOutcome.ALWAYS),
  rejected: (record) => settledAs(record, PermissionOutcome.REJECT),
  expired: (record) => settledAs(record, PermissionOutcome.EXPIRED),
  edited: (record) => settledAs(record, PermissionOutcome.EDITED),
  revoked: ({ kind }) => kind === DecisionKind.REVOKED,
};

/** Whether a record is wanted. A principal is wanted as who called and as who answered. */
export function isWanted(record: DecisionRecord, { outcome, tool, principal }: DecisionFilter): boolean {
  return (
    (outcome === "" || outcomes[outcome]?.(record) === true) &&
    (tool === "" || record.tool === tool) &&
    (principal === "" || record.principal === principal || record.by === principal)
  );
}

function settledAs({ kind, settled }: DecisionRecord, ...wanted: readonly PermissionOutcome[]): boolean {
  return kind === DecisionKind.SETTLED && settled !== undefined && wanted.includes(settled.outcome);
}
