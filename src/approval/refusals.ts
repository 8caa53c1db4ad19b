import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethod,
  PermissionOutcome,
  type PermissionSettled,
  type Person,
  type Question,
  type QuestionAnswer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { currentNeed } from "../core/current-need.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { proofWords } from "../view/need.ts";
import type { AskRecord } from "./ports.ts";

/** Checks an answer to an ask that is already settled: returns if it repeats the winning answer, throws how the ask ended otherwise. */
export function checkSameAnswer(
  settled: PermissionSettled,
  principal: Principal,
  { replyId, permissionId }: PermissionResponse,
  answerDigest: string,
): void {
  const isSameId = replyId !== "" && replyId === settled.replyId;
  if ([settled, ...settled.votes].some((each) => isSameAnswer(each, principal, replyId, answerDigest))) return;
  if (isSameId) throw replyIdReused({ permissionId, replyId });
  const outcome = outcomeName(settled.outcome);
  const token = settled.person?.name && settled.method === AnswerMethod.TOKEN ? " (with a token)" : "";
  const proof = settled.channel === "" ? token : ` (at ${settled.channel})`;
  throw settled.by !== ""
    ? new RequestError(
        ErrorReason.ALREADY_ANSWERED,
        `permission request ${permissionId} was answered "${outcome}" by ${settled.person?.name || settled.by}${proof}`,
        { permission_id: permissionId, by: settled.by },
        { settled },
      )
    : new RequestError(
        ErrorReason.ASK_CLOSED,
        `permission request ${permissionId} is closed: ${outcome}${settled.message === "" ? "" : ` (${settled.message})`}`,
        { permission_id: permissionId, outcome },
        { settled },
      );
}

/** The id of the answer was used for another one. */
export function replyIdReused({
  permissionId,
  replyId,
}: Pick<PermissionResponse, "permissionId" | "replyId">): RequestError {
  return new RequestError(
    ErrorReason.REPLY_ID_REUSED,
    `reply_id ${replyId} was used for another answer to ${permissionId}; send a new one`,
    { permission_id: permissionId, reply_id: replyId },
  );
}

/** True if a settlement or a vote is this answer of this principal. */
export function isSameAnswer(
  given: Pick<PermissionSettled, "by" | "person" | "answerDigest" | "replyId">,
  principal: Principal,
  replyId: string,
  answerDigest: string,
): boolean {
  return isOf(given, principal) && given.answerDigest === answerDigest && given.replyId === replyId;
}

/** True if an answer is one of this principal: through a channel many persons answer, so the person counts as well. */
export const isOf = ({ by, person }: Pick<PermissionSettled, "by" | "person">, { id, identity }: Principal): boolean =>
  by === id && person?.id === identity?.person.id;

/** Issuer of what answers in the place of a person: a token that names none. */
export const tokenIssuer = "token";

/** The person is not one of those who may approve the request. */
export function notEligible(request: PermissionRequest, voter?: Person): RequestError {
  const { id, person } = request;
  const need = currentNeed(request);
  const from = [...new Set(need?.all.flatMap((each) => each.from))];
  const isBehind = need?.otherPerson === true && voter !== undefined && person?.id === voter.id;
  const isToken = voter?.issuer === tokenIssuer && from.length === 0;
  const why = isBehind
    ? "comes from an agent that works for you, and another person has to approve it"
    : isToken
      ? "is approved by persons, and your token names none; sign in with a code, or set `person` in its `[[token]]`"
      : `is approved by members of ${from.join(", ")}, and you are none`;
  return new RequestError(ErrorReason.NOT_ELIGIBLE, `permission request ${id} ${why}; you may reject it`, {
    permission_id: id,
    from: isBehind ? "" : from.join(","),
  });
}

/** The request needs a stronger proof of the person. */
export function methodTooWeak({ id, need }: PermissionRequest): RequestError {
  const method = need?.method ?? AnswerMethod.UNSPECIFIED;
  const fact = `permission request ${id} is approved ${proofWords(method)}: open it in the console (/r/${id}), and approve it there; you may reject it here`;
  return new RequestError(ErrorReason.METHOD_TOO_WEAK, fact, { permission_id: id, method: methodName(method) });
}

const methodName = (method: AnswerMethod) =>
  Object.entries(AnswerMethod).find(([, value]) => value === method)?.[0] ?? "";

/** The request needs a reason for each approval. */
export function reasonMissing({ id }: PermissionRequest): RequestError {
  const fact = `permission request ${id} needs a reason to approve it; send \`reason\` (toolgate reply --reason TEXT)`;
  return new RequestError(ErrorReason.REASON_MISSING, fact, { permission_id: id });
}

/** The request needs that the person was shown all of it. */
export function partlyShown({ id, view }: PermissionRequest): RequestError {
  const why = view?.complete
    ? "is approved only by someone who was shown all of it; show it, and send its digest as `expected_digest`"
    : "is approved only by someone who was shown all of it, and a part of it cannot be shown; reject it";
  return new RequestError(ErrorReason.NOT_SHOWN, `permission request ${id} ${why}`, { permission_id: id });
}

/** The request has as many votes as are stored of one. */
export function tooManyVotes({ id, votes }: PermissionRequest): RequestError {
  const fact = `permission request ${id} has ${votes.length} votes, and is not approved; reject it, and let the agent ask again`;
  return new RequestError(ErrorReason.QUOTA_EXCEEDED, fact, { permission_id: id, limit: "votes" });
}

function outcomeName(outcome: PermissionOutcome): string {
  const name = Object.entries(PermissionOutcome).find(([, value]) => value === outcome)?.[0];
  return (name ?? "unspecified").toLowerCase();
}

/** The session has no permission request of that ID. */
export function noSuchPermission({
  sessionId,
  permissionId,
}: Pick<PermissionResponse, "sessionId" | "permissionId">): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERMISSION,
    `session ${sessionId} has no permission request ${permissionId}; ListPermissions shows the open ones`,
    { session_id: sessionId, permission_id: permissionId },
  );
}

/** No session that the principal may read has this permission request. */
export function unknownPermission(permissionId: string): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_PERMISSION,
    `permission request ${permissionId} is not known: its session was removed, or the id is wrong; ListPermissions shows the open ones`,
    { permission_id: permissionId },
  );
}

/** The person that made a call, and where that counts its user, never answers its asks. */
export function ownCall(ask: AskRecord, principal: Principal): RequestError {
  const permissionId = ask.request.id;
  const fact = isOfPerson(ask, principal) ? ownPersonFact(ask, principal) : ownUserFact(principal);
  return new RequestError(ErrorReason.OWN_CALL, `permission request ${permissionId} ${fact}`, {
    permission_id: permissionId,
  });
}

/** Checks if the person of the principal, or one from whom its credential descends, made the call of an ask. */
export function isOfPerson({ person }: AskRecord, { lineage }: Principal): boolean {
  return lineage.includes(person);
}

function ownPersonFact({ principal: maker }: AskRecord, { id }: Principal): string {
  const relation = maker === id ? "" : `, and ${id} belongs to the same person or descends from it`;
  return `belongs to a call that ${maker} made${relation}; another person has to answer it`;
}

function ownUserFact({ user }: Principal): string {
  return user === "hidden"
    ? "needs another user than that of the call (require_other_user), and the user of this connection cannot be seen; keep the connection open until the response"
    : `belongs to a call of user ${user}, and this answer comes from the same user (require_other_user); answer as another user, or from another machine`;
}

/** The digest in the answer is not that of the permission request. */
export function changedAsk({ id, digest }: PermissionRequest): RequestError {
  return new RequestError(
    ErrorReason.ASK_CHANGED,
    `permission request ${id} has changed since it was shown: its digest is now ${digest}; read and show it again`,
    { permission_id: id, digest },
  );
}

/** The file is not one of the permission request, or the request is settled. */
export function notBoundFile({ request: { id }, settled }: AskRecord, path: string): RequestError {
  if (settled) {
    const outcome = outcomeName(settled.outcome);
    const fact = `permission request ${id} is closed: ${outcome}; its files can only be read while it is open`;
    return new RequestError(ErrorReason.ASK_CLOSED, fact, { permission_id: id, outcome }, { settled });
  }
  return new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `permission request ${id} has no file ${JSON.stringify(path)}; name the path of one of its view.files`,
    { field: "path" },
  );
}

/** The content of the file is not the one that the permission request is about. */
export function changedFile({ id, digest }: PermissionRequest, path: string): RequestError {
  return new RequestError(
    ErrorReason.ASK_CHANGED,
    `${path} has changed since permission request ${id} was opened, so an approval would not count; the call is asked again with what it is now`,
    { permission_id: id, digest, path },
  );
}

/** The grant would be expired when it is saved. */
export function pastExpiry(expires: number): RequestError {
  return new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `expires is ${new Date(expires).toISOString()}, which has passed; name a later time, or answer once`,
    { field: "expires" },
  );
}

/** The grant would cover more calls than the offer. */
export function tooManyTimes(times: number, offered: number): RequestError {
  return new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `times is ${times}, and the offer covers at most ${offered}; name a smaller number, or leave it out`,
    { field: "times" },
  );
}

/** The permission request has no such offer, or none at all. */
export function noOffer({ id }: PermissionRequest, what: string): RequestError {
  return new RequestError(
    ErrorReason.NO_OFFER,
    `permission request ${id} has ${what}; choose one of its offers, answer once, or reject`,
    { permission_id: id },
  );
}

/** The arguments of a call that runs, or that asks a question, cannot be changed. */
export function notEditable({ request: { id }, part }: AskRecord): RequestError {
  const why =
    part.state.case === "pending"
      ? "belongs to a call that asks a question, which an edit does not answer; send answers, or reject"
      : `comes from the running ${part.tool}, whose arguments are in use; answer once, always or reject`;
  return new RequestError(ErrorReason.NOT_EDITABLE, `permission request ${id} ${why}`, { permission_id: id });
}

/** The answers do not fit the questions of the permission request. */
function invalidAnswers({ id }: PermissionRequest, field: string, why: string): RequestError {
  return new RequestError(ErrorReason.INVALID_ANSWERS, `permission request ${id} is not answered: ${why}`, {
    permission_id: id,
    field,
  });
}

/** Returns the reason and the text for the model with which a call ends whose permission request was not approved. */
export function refusalText(
  request: PermissionRequest,
  outcome: PermissionOutcome | undefined,
  message = "",
): [ToolErrorReason, string] {
  if (isQuestion(request)) return questionRefusal(outcome, message);
  const quoted = request.patterns.slice(0, maxQuoted).map((pattern) => JSON.stringify(beginningOf(pattern)));
  const more = request.patterns.length - quoted.length;
  const what = `${request.permission} ${quoted.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
  if (outcome === PermissionOutcome.EXPIRED) {
    return [
      ToolErrorReason.EXPIRED,
      `Nobody answered the permission request for ${what} in time, so the call was not run. Go on without it, or ask the user.`,
    ];
  }
  if (outcome === PermissionOutcome.DENIED) {
    return [
      ToolErrorReason.DENIED,
      `${what} is not allowed: it needs an approver, and the service runs without one. Do not try it again; go on without it.`,
    ];
  }
  const advice =
    message === "" ? "Do not try it again; go on without it, or ask the user." : `Their advice: ${message}`;
  return [ToolErrorReason.REJECTED, `The user rejected this call (${what}). ${advice}`];
}

/** Patterns that a refusal quotes to the model, which knows its own call, and characters of each. */
const maxQuoted = 8;
const maxQuotedLength = 400;

const beginningOf = (pattern: string) =>
  pattern.length > maxQuotedLength ? `${pattern.slice(0, maxQuotedLength).toWellFormed()}…` : pattern;

function questionRefusal(outcome: PermissionOutcome | undefined, message: string): [ToolErrorReason, string] {
  if (outcome === PermissionOutcome.EXPIRED) {
    return [ToolErrorReason.EXPIRED, "Nobody answered the question in time. Go on without an answer."];
  }
  if (outcome === PermissionOutcome.DENIED) {
    return [
      ToolErrorReason.DENIED,
      "The question was not asked: it needs a person, and the service runs without one. Go on without an answer.",
    ];
  }
  const dismissed = "The user dismissed this question";
  return [ToolErrorReason.REJECTED, message === "" ? dismissed : `${dismissed}. Their feedback: ${message}`];
}

/** Returns the message of the call's other asks, which are withdrawn with the refused one. */
export function withdrawalText({ permission }: PermissionRequest, outcome: PermissionOutcome): string {
  return `${permission} was ${outcome === PermissionOutcome.EXPIRED ? "not answered in time" : "rejected"}`;
}

/** Reports whether a permission request asks a person questions, so that only answers settle it. */
export function isQuestion({ question }: Pick<PermissionRequest, "question">): boolean {
  return question.length > 0;
}

/** Checks the answers of an approval: a request with questions needs those that fit, any other request none. */
export function checkAnswers(request: PermissionRequest, { reply, answers }: PermissionResponse): void {
  const { question: questions } = request;
  if (questions.length === 0) {
    if (answers.length === 0) return;
    throw invalidAnswers(request, "answers", "it asks no question; answer without `answers`");
  }
  if (reply !== PermissionReply.ONCE) throw noOffer(request, "questions and nothing to save");
  if (answers.length !== questions.length) {
    throw invalidAnswers(
      request,
      "answers",
      `it has ${count(questions.length, "question")}, and ${count(answers.length, "answer")} came; send one list of values for each question, an empty one for no answer`,
    );
  }
  if (answers.every(({ values }) => values.length === 0)) {
    throw invalidAnswers(request, "answers", "no answer has a value; answer at least one question, or reject");
  }
  questions.forEach((question, i) => {
    const problem = problemOf(question, answers[i]?.values ?? []);
    if (problem !== undefined)
      throw invalidAnswers(request, `answers[${i}]`, `the answer to question ${i + 1} ${problem}`);
  });
}

/** Describes why values do not answer a question; undefined if they do. */
function problemOf({ options, multiple, custom }: Question, values: QuestionAnswer["values"]): string | undefined {
  const labels = options.map(({ label }) => label);
  const listed = labels.map((label) => JSON.stringify(label)).join(", ");
  const free = values.filter((value) => !labels.includes(value));
  if (!multiple && values.length > 1) return `has ${values.length} values; it takes one`;
  if (new Set(values).size < values.length) return "has the same value twice";
  if (!custom && free[0] !== undefined) return `is ${JSON.stringify(free[0])}; choose of ${listed}`;
  if (free.length > 1)
    return `has ${free.length} values that are no option; one may be free text, the others are of ${listed}`;
  if (free.some((value) => value.trim() === "")) return "is blank; leave its list empty for no answer";
  return undefined;
}

const count = (n: number, what: string) => `${n} ${what}${n === 1 ? "" : "s"}`;
