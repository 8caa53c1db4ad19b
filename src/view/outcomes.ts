import { AnswerMethod, PermissionOutcome, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { commandFailureOf, commandFailureWords } from "../core/command-failure.ts";
import { enumWord } from "./words.ts";

/** Removes whatever could deceive the reader from text of unknown origin; terminal and console have one each. */
export type TextFilter = (text: string) => string;

/** The outcome of an ask and who answered, such as `rejected by alice: use the staging database` or `answered by alice: Redis`. */
export function outcomeWords(
  settled: Pick<
    PermissionSettled,
    "outcome" | "by" | "person" | "method" | "message" | "answers" | "channel" | "votes"
  >,
  filter: TextFilter,
): string {
  const { outcome, by, person, method, message, answers, channel, votes } = settled;
  // A token that names no person is named by its id.
  const token = person?.name && method === AnswerMethod.TOKEN ? " (with a token)" : "";
  const proof = channel === "" ? token : ` (at ${filter(channel)})`;
  const agreed = isApproval(outcome) && outcome !== PermissionOutcome.EDITED ? votes : [];
  const others = agreed
    .filter((vote) => vote.outcome !== PermissionOutcome.REJECT && vote.person?.id !== person?.id)
    .map((vote) => `${filter(vote.person?.name || vote.by)}, `);
  const who = by === "" ? "" : ` by ${others.join("")}${filter(person?.name || by)}${proof}`;
  if (answers.length > 0) return `answered${who}: ${answersWords(answers, filter)}`;
  const why = message === "" ? "" : `: ${filter(message)}`;
  return `${verbs.get(outcome) ?? "settled"}${who}${why}`;
}

/** The answers of a settlement on one line, in the order of the questions. */
export function answersWords(answers: PermissionSettled["answers"], filter: TextFilter): string {
  return answers.map(({ values }) => (values.length === 0 ? "no answer" : values.map(filter).join(", "))).join("; ");
}

/** Tests for an approval, after which the call can run: as it was or with edited arguments. */
export function isApproval(outcome: PermissionOutcome): boolean {
  return approvals.has(outcome);
}

/** The outcome of an ask that was settled while this client was disconnected. */
export const settledUnseen = "settled while disconnected";

const approvals: ReadonlySet<PermissionOutcome> = new Set([
  PermissionOutcome.ONCE,
  PermissionOutcome.ALWAYS,
  PermissionOutcome.EDITED,
]);

const verbs: ReadonlyMap<PermissionOutcome, string> = new Map([
  [PermissionOutcome.ONCE, "approved once"],
  [PermissionOutcome.ALWAYS, "approved always"],
  [PermissionOutcome.REJECT, "rejected"],
  [PermissionOutcome.EXPIRED, "expired: no answer in time"],
  [PermissionOutcome.WITHDRAWN, "withdrawn"],
  [PermissionOutcome.EDITED, "edited"],
  [PermissionOutcome.DENIED, "denied: the service is unattended"],
]);

/** The reason why a call failed, such as `executor lost`. */
export function errorReasonWords(reason: ToolErrorReason): string {
  if (reason === ToolErrorReason.NOT_REPORTED) return "approved, outcome not reported";
  return enumWord(ToolErrorReason, reason);
}

/** Tests for a call that an agent may have run without a report: neither a success nor a failure. */
export function isUnreported({ state }: Pick<ToolPart, "state">): boolean {
  return state.case === "error" && state.value.reason === ToolErrorReason.NOT_REPORTED;
}

/** The effects that a failed call may have had. */
export function effectsWords(effects: ToolEffects): string {
  return effects === ToolEffects.NONE ? "nothing was changed" : "it may have changed something";
}

/** Describes the failure of a completed call's command, such as `exit code 3`; empty if it succeeded, or if the call runs no command. */
export function failedCommandWords({ state }: Pick<ToolPart, "state">): string {
  const failure = state.case === "completed" ? commandFailureOf(state.value.metadata) : undefined;
  return failure === undefined ? "" : commandFailureWords(failure);
}
