import { createHash } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import {
  AnswerMethod,
  type Grant,
  GrantSchema,
  GrantScope,
  type Offer,
  PermissionOutcome,
  type PermissionSettled,
  PermissionSettledSchema,
  type Person,
  Shown,
  type Vote,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { currentNeed } from "../core/current-need.ts";
import { canonicalJson } from "../core/json.ts";
import { settlementRecords, voteRecord } from "./decisions.ts";
import { coversAsk } from "./grants.ts";
import { plainOffer, timesText } from "./offers.ts";
import type { AnswerEffects, AskRecord, EndedWait, OpenFilter, PermissionStore, Settlement } from "./ports.ts";
import {
  checkAnswers,
  isQuestion,
  methodTooWeak,
  noOffer,
  notEditable,
  notEligible,
  refusalText,
  tooManyTimes,
  tooManyVotes,
  withdrawalText,
} from "./refusals.ts";
import {
  agreedOffer,
  checkApproval,
  type Electorate,
  isRejectedBy,
  isTooWeak,
  maxVotes,
  mayApprove,
  meetsNeed,
  type ReceiptCheck,
  representedBy,
  voteOn,
  voterOf,
  withVote,
} from "./votes.ts";

/** Everything from which settlements are computed. A settlement changes nothing until the store writes it. */
export interface ApprovalContext extends Electorate {
  store: PermissionStore;
  effects: AnswerEffects;
  /** Absent where no passkey signs answers. */
  receipts?: ReceiptCheck | undefined;
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
    | "channel"
    | "message"
    | "replyId"
    | "answerDigest"
    | "settledWith"
    | "grantId"
    | "answers"
    | "shown"
    | "reason"
    | "votes"
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
  const voter = voterOf(answer);
  if (!mayApprove(ask.request, voter, context)) throw notEligible(ask.request, voter);
  if (isTooWeak(ask.request, answer.method)) throw methodTooWeak(ask.request);
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
  const { expectedDigest, wholeCall } = response;
  // Asks of one plan have one digest; one with another digest may have opened after the approver looked.
  const others = (wholeCall ? await openSiblings(context.store, ask) : []).filter(
    ({ request }) => !isQuestion(request) && (expectedDigest === "" || request.digest === expectedDigest),
  );
  const ballots = castVotes(context, ask, others, response, answer);
  const met = ballots.filter(({ isMet }) => isMet);
  const saved = met.filter(({ agreed }) => agreed);
  const grants = saved.length === 0 ? [] : grantsSaved(saved, ask, workspace, response, answer.by ?? "", context);
  const answered = met.map(({ ask: each, votes }) => {
    const grantId = grants.find(({ permissionId }) => permissionId === each.request.id)?.id ?? "";
    const outcome = grantId === "" ? PermissionOutcome.ONCE : PermissionOutcome.ALWAYS;
    return settle(context, each, outcome, {
      ...(each === ask ? { ...answer, answers: response.answers } : impliedAnswer(ask, response, answer)),
      ...(votes && { votes }),
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
  const asks = [...ballots.map((each) => each.ask), ...covered.map((each) => each.ask)];
  const voted = ballots.flatMap(({ ask: each, isMet, votes }) => (isMet || !votes ? [] : { ...each, votes }));
  const calls = new Map(asks.map((each) => [callKey(each.call), each]));
  return {
    root: ask.call.root,
    askId: ask.request.id,
    settled,
    calls: [...calls.values()].map(({ call, version }) => ({ ref: call, version })),
    grants,
    decisions: [...settlementRecords(asks, settled, grants), ...voted.map((each) => voteRecord(each, each.votes))],
    waits: endedWaits(asks, settled),
    ...(voted.length > 0 && { voted: voted.map(({ request, votes }) => ({ ...request, votes })) }),
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
    votes: ask.request.votes,
    ...answer,
    permissionId: ask.request.id,
    sessionId: ask.call.sessionId,
    callId: ask.call.callId,
    outcome,
    time: now(),
  });
}

const answeredBy = ({ by = "", person, method, channel = "" }: StoredAnswer): StoredAnswer => ({
  ...{ by, channel },
  ...(person && { person }),
  // A passkey signed the other one only.
  ...(method && { method: method === AnswerMethod.PASSKEY ? AnswerMethod.SESSION : method }),
});

/** An approval of one ask. */
interface Ballot {
  ask: AskRecord;
  /** True if it settles the ask. */
  isMet: boolean;
  /** All votes with this one; absent for an ask that needs none. */
  votes?: Vote[];
  /** End, limit and voters of the grant that it saves; absent: it saves none. */
  agreed?: { expires: number; times: number; voters: readonly Person[]; method?: AnswerMethod } | undefined;
}

/**
 * Approves the named ask and the others of its call, each by its own need. Of several asks those are left out that this person may
 * not approve; none of which they may is refused.
 */
function castVotes(
  context: ApprovalContext,
  named: AskRecord,
  others: readonly AskRecord[],
  response: PermissionResponse,
  answer: StoredAnswer,
): Ballot[] {
  const { groupsNow, now } = context;
  const { reason, expectedDigest, expires, times, reply } = response;
  const voter = voterOf(answer);
  const { method } = answeredBy(answer);
  const allowed = [named, ...others].filter(
    (ask) => mayApprove(ask.request, voter, context) && (ask === named || !isTooWeak(ask.request, method)),
  );
  return (allowed.length === 0 ? [named] : allowed).map((ask): Ballot => {
    const { request } = ask;
    const need = currentNeed(request);
    if (need === undefined)
      return { ask, isMet: true, ...(reply === PermissionReply.ALWAYS && { agreed: { expires, times, voters: [] } }) };
    const shown = shownBy(response, request);
    const given = ask === named ? answer : impliedAnswer(named, response, answer);
    checkApproval(request, voter, { reason, shown, method: given.method }, context);
    const offer = reply === PermissionReply.ALWAYS ? offerFor(request, response, ask === named) : undefined;
    if (reply === PermissionReply.ALWAYS && !offer && !response.wholeCall) throw noOffer(request, "nothing to save");
    const vote = voteOn(
      request,
      offer ? PermissionOutcome.ALWAYS : PermissionOutcome.ONCE,
      {
        ...voteFields(given),
        ...{ shown, offerId: offer?.id ?? "", expires, times, reason, time: now() },
        onBehalfOf: representedBy(request, voter, context),
      },
      expectedDigest,
    );
    const votes = withVote(request.votes, vote);
    const isMet = meetsNeed(need, votes, groupsNow);
    if (!isMet && votes.length > maxVotes(need)) throw tooManyVotes(request);
    return { ask, votes, isMet, agreed: agreedOffer(votes, groupsNow) };
  });
}

/** The fields of an answer that its vote has too. */
function voteFields(answer: StoredAnswer) {
  const { method, by = "", channel = "", replyId = "", answerDigest = "" } = answer;
  return { person: voterOf(answer), ...(method && { method }), by, channel, replyId, answerDigest };
}

/**
 * Rejects the ask. Where that takes several persons, it is a vote until so many have rejected; rejecting is never harder than
 * approving.
 */
export async function rejectAsk(context: ApprovalContext, ask: AskRecord, answer: StoredAnswer): Promise<Settlement> {
  const { request, call, version } = ask;
  const { need } = request;
  if (need === undefined) return await refuseAsk(context, ask, PermissionOutcome.REJECT, answer);
  const { reason = "", shown = Shown.UNKNOWN } = answer;
  const vote = voteOn(
    request,
    PermissionOutcome.REJECT,
    { ...voteFields(answer), reason, shown, time: context.now() },
    shown === Shown.UNKNOWN ? "" : request.digest,
  );
  const votes = withVote(request.votes, vote);
  if (isRejectedBy(need, votes)) return await refuseAsk(context, ask, PermissionOutcome.REJECT, { ...answer, votes });
  const record = voteRecord(ask, votes);
  const none = { settled: [], grants: [], waits: [], expired: false };
  const calls = [{ ref: call, version }];
  return { ...none, root: call.root, askId: request.id, calls, voted: [{ ...request, votes }], decisions: [record] };
}

/** The answer to an ask that the response did not name: as if it had been answered itself, with the reply alone. */
function impliedAnswer({ request }: AskRecord, { reply }: PermissionResponse, answer: StoredAnswer): StoredAnswer {
  return { ...answeredBy(answer), settledWith: request.id, answerDigest: answerDigest({ reply }) };
}

/** An open ask, and the new grant that covers it. */
interface CoveredAsk {
  ask: AskRecord;
  grant: Grant;
}

/**
 * Finds the open asks of a tree that new grants cover, together with the grants that already exist. `answered` holds the
 * IDs of the permission requests that the answer settles anyway.
 */
async function findCoveredAsks(
  store: PermissionStore,
  grants: readonly Grant[],
  root: string,
  answered: ReadonlySet<string>,
): Promise<{ covered: CoveredAsk[]; asksVersion?: number }> {
  const [{ workspace, agent } = { workspace: "", agent: "" }] = grants;
  if (grants.length === 0) return { covered: [] };
  // The version is read before the asks, so that the step that writes the settlement detects an ask opened in between.
  const { asksVersion } = await store.grantsFor({ root, workspace, agent });
  // What needs votes is settled by votes.
  const open = (await allOpenAsks(store, root)).filter(({ request }) => !answered.has(request.id) && !request.need);
  const agents = [...new Set(open.map(({ request }) => request.agent))];
  const livingByAgent = new Map(
    await Promise.all(
      agents.map(async (agent) => [agent, (await store.grantsFor({ root, workspace, agent })).grants] as const),
    ),
  );
  const covered = open.flatMap((ask) => {
    const { request, part } = ask;
    const used = coversAsk([...grants, ...(livingByAgent.get(request.agent) ?? [])], request, part.tool);
    const grant = used?.find((each) => grants.includes(each));
    return grant ? [{ ask, grant }] : [];
  });
  return { covered: withinTimes(covered), asksVersion };
}

/** Leaves out the calls for which no use of the grants is left. Those that are settled count when they start. */
function withinTimes(covered: readonly CoveredAsk[]): CoveredAsk[] {
  const least = Math.min(...covered.map(({ grant }) => grant.times || Number.POSITIVE_INFINITY));
  const calls = [...new Set(covered.map(({ ask }) => callKey(ask.call)))].slice(0, least);
  return covered.filter(({ ask }) => calls.includes(callKey(ask.call)));
}

/**
 * Lists the waits of calls that end with these settlements: no ask of the call stays open. A call waits without an owner, so no
 * replica can measure its wait.
 */
function endedWaits(asks: readonly AskRecord[], settled: readonly PermissionSettled[]): EndedWait[] {
  const times = new Map(settled.map(({ permissionId, time }) => [permissionId, time]));
  return [...Map.groupBy(asks, ({ part }) => part.id).values()].flatMap((ofCall) => {
    const [{ part } = {}] = ofCall;
    if (part === undefined || !part.permissionIds.every((id) => times.has(id))) return [];
    const began = Math.min(...ofCall.map(({ request }) => request.created));
    const ended = Math.max(...ofCall.map(({ request }) => times.get(request.id) ?? 0));
    return [{ part, ms: Math.max(ended - began, 0) }];
  });
}

const noLimits: NonNullable<Ballot["agreed"]> = { expires: 0, times: 0, voters: [] };

/** Builds the grants that "always" saves, of each ask the offer that the answer chooses. */
function grantsSaved(
  saved: readonly Ballot[],
  named: AskRecord,
  workspace: string,
  response: PermissionResponse,
  by: string,
  { newId, now }: { newId(prefix: "grt"): string; now(): number },
): Grant[] {
  const grants = saved.flatMap(
    ({ ask, agreed: { expires, times: fewer, voters, method = AnswerMethod.UNSPECIFIED } = noLimits }) => {
      const { request, call, part } = ask;
      const offer = offerFor(request, response, ask === named);
      if (!offer?.match) return [];
      const { scope, binding } = offer;
      // The smaller of the two; 0 means any number.
      const times = Math.min(offer.times || fewer, fewer || offer.times);
      const text = `${offer.text.slice(0, offer.text.length - timesText(offer.times).length)}${timesText(times)}`;
      const grant = { scope, binding, workspace, tool: part.tool, sessionId: call.root, grantedBy: by };
      return [offer.match, ...offer.also].map((match) =>
        create(GrantSchema, {
          ...grant,
          match,
          text: expires === 0 ? text : `${text}, at most until ${new Date(expires).toISOString()}`,
          id: newId("grt"),
          permission: request.permission,
          permissionId: request.id,
          created: now(),
          // The earlier of the two; 0 means never.
          expires: Math.min(offer.expires || expires, expires || offer.expires),
          ...{ times, left: times },
          agent: scope === GrantScope.AGENT ? request.agent : "",
          voters: [...voters],
          method,
        }),
      );
    },
  );
  if (grants.length === 0) throw noOffer(named.request, "nothing to save");
  return grants;
}

/**
 * Returns the offer that an answer saves of a request: the chosen one of the named request, the first one of others; without a choice
 * the plain one of each. Throws if the named request has no such offer.
 */
function offerFor(
  request: PermissionRequest,
  { offerId, times }: PermissionResponse,
  isNamed: boolean,
): Offer | undefined {
  const offer = offerId === "" ? plainOffer(request) : request.offers.find(({ id }) => !isNamed || id === offerId);
  if (!offer?.match && isNamed && offerId !== "") throw noOffer(request, `no offer ${offerId}`);
  if (isNamed && offer && offer.times > 0 && times > offer.times) throw tooManyTimes(times, offer.times);
  return offer?.match && offer;
}

type AnswerContent = Pick<PermissionResponse, "reply"> &
  Partial<
    Pick<
      PermissionResponse,
      | "message"
      | "offerId"
      | "input"
      | "wholeCall"
      | "expires"
      | "times"
      | "answers"
      | "onBehalfOf"
      | "channel"
      | "reason"
    >
  >;

/** Identifies the content of an answer. `expected_digest` and `reply_id` describe the request that carries it, and are left out. */
export function answerDigest({
  reply,
  message,
  offerId,
  input,
  wholeCall,
  expires,
  times = 0,
  answers = [],
  onBehalfOf = "",
  channel = "",
  reason = "",
}: AnswerContent): string {
  const content = [reply, message ?? "", offerId ?? "", input ? canonicalJson(input) : "", wholeCall === true];
  const at = [
    ...(onBehalfOf === "" ? [] : [{ onBehalfOf, channel }]),
    ...(reason === "" ? [] : [{ reason }]),
    ...(times === 0 ? [] : [{ times }]),
  ];
  return createHash("sha256")
    .update(JSON.stringify([...content, expires ?? 0, ...answers.map(({ values }) => values), ...at]))
    .digest("base64url");
}

const pageSize = 500;
/** Requests that wait in memory for a reader, with their previews. */
const smallPage = 50;

/** Reads every open ask of a session tree. */
export async function allOpenAsks(store: PermissionStore, root: string | undefined): Promise<AskRecord[]> {
  for (const open: AskRecord[] = []; ; ) {
    const page = await store.openAsks({ root, after: open.at(-1)?.request.id, limit: pageSize });
    open.push(...page);
    if (page.length < pageSize) return open;
  }
}

/** Yields the open requests of one tree or of all, oldest first. Only a page of them is in memory. */
export async function* eachOpenRequest(
  store: Pick<PermissionStore, "openRequests">,
  root: string | undefined,
): AsyncGenerator<PermissionRequest, void> {
  for (let after: string | undefined; ; ) {
    const page = await store.openRequests({ root, after, limit: smallPage });
    yield* page;
    after = page.at(-1)?.id;
    if (page.length < smallPage) return;
  }
}

/** Reads a page of the open requests that `sees` admits, oldest first; more at once than are wanted only if some are not seen. */
export async function listOpenRequests(
  store: Pick<PermissionStore, "openRequests">,
  { sees, ...filter }: OpenFilter & { sees(request: PermissionRequest): Promise<boolean> },
): Promise<{ requests: PermissionRequest[]; next?: string }> {
  const requests: PermissionRequest[] = [];
  let { after } = filter;
  for (let limit = Math.min(filter.limit, pageSize); ; limit = pageSize) {
    const page = await store.openRequests({ ...filter, after, limit });
    for (const request of page) {
      if (await sees(request)) requests.push(request);
      if (requests.length === filter.limit) return { requests, next: request.id };
    }
    after = page.at(-1)?.id;
    if (page.length < limit) return { requests };
  }
}
