import { DecisionKind, type DecisionRecord, PermissionOutcome } from "../../../gen/opencode/tool/v1/permission_pb.ts";

/** The selected decisions; an empty value selects all. */
export interface DecisionFilter {
  readonly outcome: string;
  readonly tool: string;
  readonly principal: string;
}

/** The outcomeFilters of decisions by their name in the filter. */
export const outcomeFilters: Readonly<Record<string, (record: DecisionRecord) => boolean>> = {
  ran: ({ kind }) => kind === DecisionKind.ALLOWED,
  denied: (record) => record.kind === DecisionKind.DENIED || settledAs(record, PermissionOutcome.DENIED),
  asked: ({ kind }) => kind === DecisionKind.ASKED,
  approved: (record) => settledAs(record, PermissionOutcome.ONCE, PermissionOutcome.ALWAYS),
  rejected: (record) => settledAs(record, PermissionOutcome.REJECT),
  expired: (record) => settledAs(record, PermissionOutcome.EXPIRED),
  edited: (record) => settledAs(record, PermissionOutcome.EDITED),
  reported: ({ kind }) => kind === DecisionKind.REPORTED,
  connected: ({ kind }) => kind === DecisionKind.CONNECTED,
  revoked: ({ kind }) => kind === DecisionKind.REVOKED,
  confirmed: ({ kind }) => kind === DecisionKind.CONFIRMED,
};

/** Returns true if a record matches the filter. A principal matches as caller and as approver. */
export function matchesFilter(record: DecisionRecord, { outcome, tool, principal }: DecisionFilter): boolean {
  return (
    (outcome === "" || outcomeFilters[outcome]?.(record) === true) &&
    (tool === "" || record.tool === tool) &&
    (principal === "" || record.principal === principal || record.by === principal)
  );
}

function settledAs({ kind, settled }: DecisionRecord, ...wanted: readonly PermissionOutcome[]): boolean {
  return kind === DecisionKind.SETTLED && settled !== undefined && wanted.includes(settled.outcome);
}
