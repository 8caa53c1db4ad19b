import { create, type JsonObject } from "@bufbuild/protobuf";
import {
  PermissionOutcome,
  type PermissionSettled,
  PermissionSettledSchema,
  Shown,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { answerDigest } from "./answer-digest.ts";
import type { AnswerEffects } from "./answer-effects.ts";
import { notEditable } from "./answer-refusals.ts";
import { checkAnswers, isQuestion } from "./check-answers.ts";
import { findCoveredAsks } from "./covered-asks.ts";
import { settlementRecords } from "./decisions.ts";
import { endedWaits } from "./ended-waits.ts";
import type { AskRecord, PermissionStore, Settlement } from "./ports.ts";
import { refusalText, withdrawalText } from "./refusal-text.ts";
import { grantsSaved } from "./saved-grants.ts";

/** Everything from which settlements are computed. A settlement changes nothing until the store writes it. */
export interface ApprovalContext {
  store: PermissionStore;
  effects: AnswerEffects;
  newId(prefix: "grt"): string;
  now(): number;
}

/** The fields of an answer that are stored with the ask. */
export type StoredAnswer = Partial<
  Pick<
    PermissionSettled,
    | "by"
    | "person"
    | "method"
    | "message"
    | "replyId"
    | "answerDigest"
    | "settledWith"
    | "grantId"
    | "answers"
    | "shown"
  >
>;

/** Refuses the ask: ends its call and withdraws the call's other asks. A running call learns of it from its own `ask()`. */
export async function refuseAsk(
  context: ApprovalContext,
  ask: AskRecord,
  outcome: PermissionOutcome,
  answer: StoredAnswer = {},
): Promise<Settlement> {
  const [reason, error] = refusalText(ask.request, outcome, answer.message);
  const siblings = await openSiblings(context.store, ask);
  const settled = [
    settle(context, ask, outcome, answer),
    ...siblings.map((sibling) =>
      outcome === PermissionOutcome.DENIED
        ? settle(context, sibling, outcome)
        : settle(context, sibling, PermissionOutcome.WITHDRAWN, { message: withdrawalText(ask.request, outcome) }),
    ),
  ];
  const isPending = ask.part.state.case === "pending";
  return {
    root: ask.call.root,
    askId: ask.request.id,
    settled,
    calls: [
      {
        ref: ask.call,
        version: ask.version,
        ...(isPending && { part: context.effects.fail(ask.part, reason, error) }),
      },
    ],
    grants: [],
    decisions: settlementRecords([ask, ...siblings], settled, []),
    waits: endedWaits([ask, ...siblings], settled),
    expired: outcome === PermissionOutcome.EXPIRED,
  };
}

/** Gives the call other arguments and settles all of its asks, which were about the old ones. Undefined if nothing differs. */
export async function editAsk(
  context: ApprovalContext,
  ask: AskRecord,
  workspace: string,
  input: JsonObject,
  answer: StoredAnswer,
): Promise<Settlement | undefined> {
  if (ask.part.state.case !== "pending" || (await asksQuestion(context.store, ask))) throw notEditable(ask);
  const edited = context.effects.replaceInput({ part: ask.part, workspace }, input, answer.by ?? "");
  if (edited === "no difference") return undefined;
  const message = edited.difference;
  const siblings = await openSiblings(context.store, ask);
  const settled = [
    settle(context, ask, PermissionOutcome.EDITED, { ...answer, message }),
    ...siblings.map((sibling) =>
      settle(context, sibling, PermissionOutcome.EDITED, { ...answeredBy(answer), settledWith: ask.request.id }),
    ),
  ];
  return {
    root: ask.call.root,
    askId: ask.request.id,
    settled,
    calls: [{ ref: ask.call, version: ask.version, part: edited.part }],
    grants: [],
    decisions: settlementRecords([ask, ...siblings], settled, []),
    waits: endedWaits([ask, ...siblings], settled),
    expired: false,
  };
}

/**
 * Approves the ask, saves the grants of "always", and settles the open asks of the tree that these grants cover. Only answers
 * to its own form settle a question.
 */
export async function approveAsk(
  context: ApprovalContext,
  ask: AskRecord,
  workspace: string,
  response: PermissionResponse,
  answer: StoredAnswer,
): Promise<Settlement> {
  checkAnswers(ask.request, response);
  const others = response.wholeCall ? await openSiblings(context.store, ask) : [];
  const siblings = others.filter(({ request }) => !isQuestion(request));
  const grants =
    response.reply === PermissionReply.ALWAYS
      ? grantsSaved([ask, ...siblings], workspace, response, answer.by ?? "", context)
      : [];
  const answered = [ask, ...siblings].map((each) => {
    const grantId = grants.find(({ permissionId }) => permissionId === each.request.id)?.id ?? "";
    const outcome = grantId === "" ? PermissionOutcome.ONCE : PermissionOutcome.ALWAYS;
    return settle(context, each, outcome, {
      ...(each === ask ? { ...answer, answers: response.answers } : impliedAnswer(ask, response, answer)),
      shown: shownBy(response, each.request),
      grantId,
    });
  });
  const answeredIds = new Set(answered.map(({ permissionId }) => permissionId));
  const { covered, ...read } = await findCoveredAsks(context.store, grants, ask.call.root, answeredIds);
  const coveredSettled = covered.map(({ ask: other, grant }) =>
    settle(context, other, PermissionOutcome.ALWAYS, {
      ...impliedAnswer(ask, response, answer),
      settledWith: grant.permissionId,
      grantId: grant.id,
    }),
  );
  const settled = [...answered, ...coveredSettled];
  const asks = [ask, ...siblings, ...covered.map((each) => each.ask)];
  const calls = new Map(asks.map((each) => [callKey(each.call), each]));
  return {
    root: ask.call.root,
    askId: ask.request.id,
    settled,
    calls: [...calls.values()].map(({ call, version }) => ({ ref: call, version })),
    grants,
    decisions: settlementRecords(asks, settled, grants),
    waits: endedWaits(asks, settled),
    ...read,
    expired: false,
  };
}

/**
 * Returns what the approver could see of a request: the digest in the answer names the request, and so the view that was stored with
 * it, of which the client may have shown less.
 */
export function shownBy(
  { expectedDigest, shown }: Pick<PermissionResponse, "expectedDigest" | "shown">,
  request: PermissionRequest,
): Shown {
  const { digest, view } = request;
  if (!view || expectedDigest === "" || expectedDigest !== digest || shown === Shown.UNKNOWN) return Shown.UNKNOWN;
  return view.complete && shown !== Shown.PARTIAL ? Shown.WHOLE : Shown.PARTIAL;
}

/** Identifies a call within its session tree. */
export const callKey = ({ sessionId, callId }: CallRef) => `${sessionId}/${callId}`;

/** Reports whether an open ask of the call is a question, so that the arguments of the call are its form. */
async function asksQuestion(store: PermissionStore, ask: AskRecord): Promise<boolean> {
  return [ask, ...(await openSiblings(store, ask))].some(({ request }) => isQuestion(request));
}

/** Reads the other open asks of the same call. */
async function openSiblings(store: PermissionStore, { call, request, part }: AskRecord): Promise<AskRecord[]> {
  if (part.permissionIds.every((id) => id === request.id)) return [];
  return (await store.asksOf(call)).filter((other) => !other.settled && other.request.id !== request.id);
}

function settle(
  { now }: ApprovalContext,
  ask: AskRecord,
  outcome: PermissionOutcome,
  answer: StoredAnswer = {},
): PermissionSettled {
  return create(PermissionSettledSchema, {
    ...answer,
    permissionId: ask.request.id,
    sessionId: ask.call.sessionId,
    callId: ask.call.callId,
    outcome,
    time: now(),
  });
}

const answeredBy = ({ by = "", person, method }: StoredAnswer): StoredAnswer => ({
  by,
  ...(person && { person }),
  ...(method && { method }),
});

/** The answer to an ask that the response did not name: as if it had been answered itself, with the reply alone. */
function impliedAnswer({ request }: AskRecord, { reply }: PermissionResponse, answer: StoredAnswer): StoredAnswer {
  return { ...answeredBy(answer), settledWith: request.id, answerDigest: answerDigest({ reply }) };
}
