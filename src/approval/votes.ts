import { create } from "@bufbuild/protobuf";
import {
  AnswerMethod,
  type ApprovalNeed,
  PermissionOutcome,
  type PermissionSettled,
  type Person,
  PersonSchema,
  Shown,
  type Vote,
  VoteSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { currentNeed } from "../core/current-need.ts";
import { methodTooWeak, notEligible, partlyShown, reasonMissing, tokenIssuer } from "./refusals.ts";

/** Returns the groups of a person now; undefined for one who was revoked. */
export type GroupsNow = (person: Person) => readonly string[] | undefined;

/** The person of an answer. A principal without one stands for itself. */
export function voterOf({ by = "", person }: { by?: string; person?: Person | undefined }): Person {
  return person ?? create(PersonSchema, { id: by, issuer: tokenIssuer, subject: by });
}

/** Checks if these persons meet every requirement, by their groups now. One person counts once, and in each requirement. */
export function meetsNeed({ all }: ApprovalNeed, persons: readonly Person[], groupsNow: GroupsNow): boolean {
  const groups = new Map(persons.map((person) => [person.id, groupsNow(person)]));
  return all.every(({ approve, from }) => [...groups.values()].filter((of) => counts(of, from)).length >= approve);
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
  return need === undefined || meetsNeed(need, approversIn(settled?.votes ?? []), groupsNow);
}

/** Checks if the votes reject a request. */
export function isRejectedBy({ reject }: ApprovalNeed, votes: readonly Vote[]): boolean {
  return votes.filter(({ outcome }) => outcome === PermissionOutcome.REJECT).length >= Math.max(1, reject);
}

/** Checks if it matters who approves. The owner of a token that names no person may also be another voter. */
const countsPersons = ({ all, otherPerson }: ApprovalNeed) => otherPerson || all.some(({ approve }) => approve > 1);

/** Checks if a person is one of those who may approve a request. */
export function mayApprove(
  { person: behind, ...request }: Pick<PermissionRequest, "need" | "escalations" | "person">,
  voter: Person,
  groupsNow: GroupsNow,
): boolean {
  const need = currentNeed(request);
  if (need === undefined) return true;
  if (need.otherPerson && behind?.id === voter.id) return false;
  if (countsPersons(need) && voter.issuer === tokenIssuer) return false;
  const groups = groupsNow(voter);
  return need.all.some(({ from }) => counts(groups, from));
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
  groupsNow: GroupsNow,
): void {
  if (!mayApprove(request, voter, groupsNow)) throw notEligible(request, voter);
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

/** Returns the offer on which all approving votes that count now agree, with its end, its limit and the voters; undefined without one. */
export function agreedOffer(
  votes: readonly Vote[],
  groupsNow: GroupsNow,
): { offerId: string; expires: number; times: number; voters: Person[]; method: AnswerMethod } | undefined {
  const counted = votes.filter(({ outcome, person }) => {
    return outcome !== PermissionOutcome.REJECT && person && groupsNow(person) !== undefined;
  });
  const [first] = counted;
  const isAgreed = counted.every(
    ({ outcome, offerId }) => outcome === PermissionOutcome.ALWAYS && offerId === first?.offerId,
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
