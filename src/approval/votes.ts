import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethod,
  type ApprovalNeed,
  type PasskeyReceipt,
  PermissionOutcome,
  type PermissionSettled,
  type Person,
  PersonSchema,
  Shown,
  type SignedAnswer,
  SignedAnswerSchema,
  type Vote,
  VoteSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { currentNeed } from "../core/current-need.ts";
import { canonicalJson } from "../core/json.ts";
import { isFreshSignIn, type Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { earlierVote } from "../view/need.ts";
import { shownText } from "../view/view-lines.ts";
import type { Settlement } from "./ports.ts";
import { methodTooWeak, notEligible, partlyShown, reasonMissing, tokenIssuer } from "./refusals.ts";

/**
 * Returns the groups of a person now; undefined for one who was revoked. With a vote: those for which that vote counts in the person's
 * place, undefined if it does not.
 */
export type GroupsNow = (person: Person, vote?: Ballot) => readonly string[] | undefined;

/** Returns those in whose place a person answers requests of a permission now, where an answer takes this proof, with their groups. */
export type DelegatorsOf = (to: string, permission: string, method: AnswerMethod) => Person[];

/** Groups and delegates as they are now. */
export interface Electorate {
  readonly groupsNow: GroupsNow;
  readonly delegatorsOf: DelegatorsOf;
}

/** The part of a vote that counts; without an outcome it approves. */
type Ballot = Pick<Vote, "person"> & Partial<Pick<Vote, "outcome" | "onBehalfOf" | "time">>;

/** The person of an answer. A principal without one stands for itself. */
export function voterOf({ by = "", person }: { by?: string; person?: Person | undefined }): Person {
  return person ?? create(PersonSchema, { id: by, issuer: tokenIssuer, subject: by });
}

/** Checks if these votes meet every requirement, by groups and delegates now. One person counts once, and in each requirement. */
export function meetsNeed({ all }: ApprovalNeed, votes: readonly Ballot[], groupsNow: GroupsNow): boolean {
  const approving = votes.filter(({ outcome }) => outcome !== PermissionOutcome.REJECT);
  const groups = new Map(approving.map((vote) => [vote.person?.id, groupsOfVote(vote, votes, groupsNow)]));
  return all.every(({ approve, from }) => [...groups.values()].filter((of) => counts(of, from)).length >= approve);
}

/** Returns the groups for which a vote counts now: those of its person, and of those in whose place it is, unless they voted themselves. */
function groupsOfVote(vote: Ballot, votes: readonly Ballot[], groupsNow: GroupsNow): string[] | undefined {
  const own = vote.person && groupsNow(vote.person);
  const absent = vote.onBehalfOf?.filter(({ id }) => votes.every(({ person }) => person?.id !== id)) ?? [];
  return own && [...own, ...absent.flatMap((each) => groupsNow(each, vote) ?? [])];
}

/**
 * Returns those in whose place a person votes on a request: whose groups it needs, and the person has not. A call is approved neither
 * by the delegate for whom its agent works, nor in the place of such a person.
 */
export function representedBy(
  request: Pick<PermissionRequest, "need" | "escalations" | "permission" | "person">,
  voter: Person,
  { groupsNow, delegatorsOf }: Electorate,
): Person[] {
  const need = currentNeed(request);
  if (need === undefined || request.person?.id === voter.id) return [];
  const own = groupsNow(voter);
  if (own === undefined) return [];
  const lacking = need.all.filter(({ from }) => !counts(own, from));
  return delegatorsOf(voter.id, request.permission, need.method).filter(
    ({ id, groups }) => id !== request.person?.id && lacking.some(({ from }) => counts(groups, from)),
  );
}

function counts(groups: readonly string[] | undefined, from: readonly string[]): boolean {
  return groups !== undefined && (from.length === 0 || from.some((name) => groups.includes(name)));
}

/** The persons who approve. */
export function approversIn(votes: readonly Vote[]): Person[] {
  return votes.flatMap(({ outcome, person }) => (outcome !== PermissionOutcome.REJECT && person ? person : []));
}

/** Checks if an approval still holds: the groups of the voters may have changed since. */
export function isStillMet(
  request: Pick<PermissionRequest, "need" | "escalations">,
  settled: Pick<PermissionSettled, "votes"> | undefined,
  groupsNow: GroupsNow,
): boolean {
  const need = currentNeed(request);
  return need === undefined || meetsNeed(need, settled?.votes ?? [], groupsNow);
}

/** Checks if the votes reject a request. */
export function isRejectedBy({ reject }: ApprovalNeed, votes: readonly Vote[]): boolean {
  return votes.filter(({ outcome }) => outcome === PermissionOutcome.REJECT).length >= Math.max(1, reject);
}

/** Checks if it matters who approves. The owner of a token that names no person may also be another voter. */
const countsPersons = ({ all, otherPerson }: ApprovalNeed) => otherPerson || all.some(({ approve }) => approve > 1);

/** Checks if a person is one of those who may approve a request. */
export function mayApprove(
  request: Pick<PermissionRequest, "need" | "escalations" | "permission" | "person">,
  voter: Person,
  electorate: Electorate,
): boolean {
  const [need, behind] = [currentNeed(request), request.person];
  if (need === undefined) return true;
  if (need.otherPerson && behind?.id === voter.id) return false;
  if (countsPersons(need) && voter.issuer === tokenIssuer) return false;
  const groups = electorate.groupsNow(voter);
  return need.all.some(({ from }) => counts(groups, from)) || representedBy(request, voter, electorate).length > 0;
}

/** Checks if a request wants a stronger proof of the person than this one. */
export function isTooWeak({ need }: Pick<PermissionRequest, "need">, method: AnswerMethod | undefined): boolean {
  return (need?.method ?? AnswerMethod.UNSPECIFIED) > (method ?? AnswerMethod.UNSPECIFIED);
}

/** Refuses an approval that the need of a request does not admit, in the order that the contract names. */
export function checkApproval(
  request: PermissionRequest,
  voter: Person,
  { reason, shown, method }: { reason: string; shown: Shown; method?: AnswerMethod | undefined },
  electorate: Electorate,
): void {
  if (!mayApprove(request, voter, electorate)) throw notEligible(request, voter);
  if (isTooWeak(request, method)) throw methodTooWeak(request);
  if (request.need?.reasonRequired && reason.trim() === "") throw reasonMissing(request);
  if (request.need?.shownRequired && shown !== Shown.WHOLE) throw partlyShown(request);
}

/** Number of votes that a request holds. Those who left their groups since may be many; fewer than `reject` reject. */
export const maxVotes = ({ all }: ApprovalNeed): number =>
  Math.max(100, 2 * all.reduce((sum, { approve }) => sum + approve, 0));

/** Puts a vote in the place of the person's earlier one, behind the others. */
export function withVote(votes: readonly Vote[], vote: Vote): Vote[] {
  return [...votes.filter(({ person }) => person?.id !== vote.person?.id), vote];
}

/** Builds a vote from the fields of an answer. */
export function voteOn(
  { digest, view }: PermissionRequest,
  outcome: PermissionOutcome,
  fields: Partial<Omit<Vote, "$typeName" | "outcome" | "viewDigest">>,
  expectedDigest: string,
): Vote {
  const viewDigest = expectedDigest !== "" && expectedDigest === digest ? (view?.digest ?? "") : "";
  return create(VoteSchema, { ...fields, outcome, viewDigest });
}

/**
 * Returns the offer on which all approving votes that count now agree, with its end, its limit and the voters; undefined without one.
 * A grant outlives a delegation, so it is for votes of persons who count themselves.
 */
export function agreedOffer(
  votes: readonly Vote[],
  groupsNow: GroupsNow,
): { offerId: string; expires: number; times: number; voters: Person[]; method: AnswerMethod } | undefined {
  const counted = votes.filter(({ outcome, person }) => {
    return outcome !== PermissionOutcome.REJECT && person && groupsNow(person) !== undefined;
  });
  const [first] = counted;
  const isAgreed = counted.every(
    ({ outcome, offerId, onBehalfOf }) =>
      outcome === PermissionOutcome.ALWAYS && offerId === first?.offerId && onBehalfOf.length === 0,
  );
  if (first === undefined || !isAgreed) return undefined;
  const least = (limits: readonly number[]) => limits.filter((limit) => limit > 0).sort((a, b) => a - b)[0] ?? 0;
  return {
    offerId: first.offerId,
    expires: least(counted.map(({ expires }) => expires)),
    times: least(counted.map(({ times }) => times)),
    voters: approversIn(counted),
    method: counted.reduce((least: AnswerMethod, { method }) => (method < least ? method : least), first.method),
  };
}

/** Checks the receipts of passkeys. */
export interface ReceiptCheck {
  storeId(): string;
  /** Returns the receipt to store, and how to note its use once the answer counts; refuses one that does not prove this answer. */
  check(
    signer: Principal,
    sent: PasskeyReceipt,
    answer: SignedAnswer,
  ): Promise<{ receipt: PasskeyReceipt; used(): Promise<void> }>;
}

/** Proof of who a person is, for one answer. */
export interface AnswerProof {
  readonly method?: AnswerMethod;
  readonly receipt?: PasskeyReceipt;
  used?(): Promise<void>;
}

/** Returns how the person of an answer proved who they are: by its receipt, otherwise by their sign-in. */
export async function proofOf(
  principal: Principal,
  request: PermissionRequest,
  response: PermissionResponse,
  { receipts, now }: { receipts?: ReceiptCheck | undefined; now: () => number },
): Promise<AnswerProof> {
  const { identity } = principal;
  if (identity === undefined) return {};
  if (response.receipt && receipts && response.reply !== PermissionReply.REJECT) {
    const answer = signedAnswer(request, response, identity.person.id, receipts.storeId());
    return { ...(await receipts.check(principal, response.receipt, answer)), method: AnswerMethod.PASSKEY };
  }
  const { FRESH_SESSION, SESSION } = AnswerMethod;
  const isFresh = identity.method === SESSION && isFreshSignIn(principal, now());
  return { method: isFresh && request.need?.method === FRESH_SESSION ? FRESH_SESSION : identity.method };
}

/** Returns what the person has to have signed: what this service received, about the request that it stores. */
function signedAnswer(
  request: PermissionRequest,
  { reply, offerId, expires, times, reason, input }: PermissionResponse,
  personId: string,
  storeId: string,
): SignedAnswer {
  const { id: permissionId, view, offers } = request;
  const isAlways = reply === PermissionReply.ALWAYS;
  return create(SignedAnswerSchema, {
    ...{ permissionId, viewDigest: view?.digest ?? "", shownDigest: sha256Of(shownText(request)) },
    outcome: input ? PermissionOutcome.EDITED : isAlways ? PermissionOutcome.ALWAYS : PermissionOutcome.ONCE,
    ...{ offerId, offerText: offers.find(({ id }) => id === offerId)?.text ?? "", expires, times, reason },
    editedDigest: input ? sha256Of(canonicalJson(input)) : "",
    ...{ earlier: earlierVote(request, personId), personId, storeId },
  });
}

/** Adds a receipt to the record of the answer that it proves. */
export function withReceipt(settlement: Settlement, receipt: PasskeyReceipt | undefined): Settlement {
  const { permissionId, outcome } = receipt?.answer ?? {};
  if (receipt === undefined) return settlement;
  const [settled] = settlement.settled;
  if (outcome === PermissionOutcome.EDITED && settled?.outcome !== outcome)
    throw new RequestError(ErrorReason.RECEIPT_REFUSED, "the edit changes nothing: approve the call as it is", {
      permission_id: permissionId ?? "",
    });
  const decisions = settlement.decisions?.map((record) =>
    record.permissionIds.includes(permissionId ?? "") ? { ...record, receipt } : record,
  );
  return { ...settlement, ...(decisions && { decisions }) };
}

const sha256Of = (text: string) => createHash("sha256").update(text).digest("hex");
