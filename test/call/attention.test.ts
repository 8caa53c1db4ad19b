import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import {
  type AuditEntry,
  AuditEntrySchema,
  DecisionKind,
  type DecisionRecordSchema,
  PermissionAction,
  PermissionLayer,
  PermissionOutcome,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { countAttention } from "../../src/call/attention.ts";

const { ASK, ALLOW } = PermissionAction;
const { ONCE, REJECT, EXPIRED } = PermissionOutcome;

/** The audit of a session: each record with its time. */
async function* audit(
  ...records: (MessageInitShape<typeof DecisionRecordSchema> & { at: number })[]
): AsyncGenerator<AuditEntry> {
  for (const { at, ...record } of records)
    yield create(AuditEntrySchema, { time: at, record: { sessionId: "ses_1", agent: "build", ...record } });
}

const push = { permission: "bash", pattern: "git push *", action: ASK };
const byRule = { permission: "bash", action: ASK, layer: PermissionLayer.CONFIG, rule: push };
const unmet = { permission: "bash", pattern: "*", action: ALLOW, when: "contained" };
const byCondition = {
  permission: "bash",
  action: ASK,
  reasonCode: PermissionReason.CONDITION,
  matches: [{ rule: unmet, unmet: "contained is false" }],
};
const settled = (permissionId: string, outcome: PermissionOutcome, by = "ann", settledWith = "") => ({
  kind: DecisionKind.SETTLED,
  settled: { permissionId, outcome, by, settledWith },
});
const asked = (callId: string, ...permissionIds: string[]) => ({ kind: DecisionKind.ASKED, callId, permissionIds });

test("requests are counted by agent and by what asked, with the time of the answer and no name of who answered", async () => {
  const found = await countAttention(
    audit(
      { at: 10, ...asked("old", "per_0") },
      { at: 100, kind: DecisionKind.ALLOWED, callId: "c1" },
      { at: 100, kind: DecisionKind.CONNECTED, callId: "c9" },
      { at: 200, ...asked("c2", "per_1", "per_2") },
      { at: 1_200, callId: "c2", decisions: [byRule], ...settled("per_1", ONCE) },
      { at: 1_300, callId: "c2", decisions: [byCondition], ...settled("per_2", ONCE, "ann", "per_1") },
      { at: 1_300, kind: DecisionKind.ALLOWED, callId: "c2" },
      { at: 2_000, agent: "plan", ...asked("c3", "per_3") },
      { at: 9_000, agent: "plan", callId: "c3", decisions: [byCondition], ...settled("per_3", ONCE) },
      { at: 9_000, ...asked("c4", "per_4") },
      { at: 9_500, callId: "c4", decisions: [byRule], ...settled("per_4", REJECT) },
      { at: 9_600, ...asked("c5", "per_5") },
      { at: 9_700, callId: "c5", decisions: [byRule], ...settled("per_5", EXPIRED, "") },
      { at: 9_800, ...asked("c6", "per_6") },
      { at: 9_900, callId: "old", decisions: [byRule], ...settled("per_0", ONCE) },
    ),
    50,
  );
  const none = { approved: 0, rejected: 0, unanswered: 0, hasty: 0 };
  expect(found).toEqual({
    // The call whose request was opened before counts as one that was decided.
    total: {
      ...{ ...none, name: "", calls: 7, askedCalls: 5, requests: 6 },
      ...{ approved: 2, rejected: 1, unanswered: 3, medianMs: 1_000, hasty: 1 },
    },
    agents: [
      {
        ...{ ...none, name: "build", calls: 6, askedCalls: 4, requests: 5 },
        ...{ approved: 1, rejected: 1, unanswered: 3, medianMs: 500, hasty: 1 },
      },
      { ...none, name: "plan", calls: 1, askedCalls: 1, requests: 1, approved: 1, medianMs: 7_000 },
    ],
    rules: [
      {
        ...{ ...none, name: 'config rule: bash "git push *"', calls: 0, askedCalls: 3, requests: 3 },
        ...{ approved: 1, rejected: 1, unanswered: 1, medianMs: 500, hasty: 1 },
      },
      {
        ...{ ...none, name: 'condition not met: bash "*"', calls: 0, askedCalls: 2, requests: 2 },
        ...{ approved: 1, unanswered: 1, medianMs: 7_000 },
      },
    ],
  });
});
