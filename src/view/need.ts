import { AnswerMethod, PermissionOutcome, type Person, type Vote } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { currentNeed } from "../core/current-need.ts";

/**
 * Says how many persons have approved a request and whom it waits for, such as "1 of 2, waiting for sre"; undefined where one answer
 * settles it. The groups are those that voters had when they voted.
 */
export function needWords(request: Pick<PermissionRequest, "need" | "votes" | "escalations">): string | undefined {
  const { votes, escalations } = request;
  const need = currentNeed(request);
  if (need === undefined) return undefined;
  const approving = votes.filter(({ outcome }) => outcome !== PermissionOutcome.REJECT);
  const states = need.all.map(({ approve, from }, index) => {
    const isIn = (person: Person | undefined) =>
      from.length === 0 || from.some((name) => person?.groups.includes(name));
    const isAbsent = ({ id }: Person) => votes.every(({ person }) => person?.id !== id);
    const count = approving.filter(
      ({ person, onBehalfOf }) => isIn(person) || onBehalfOf.some((each) => isAbsent(each) && isIn(each)),
    );
    const first = request.need?.all[index]?.from ?? [];
    // The console decodes only fields that its own sources and these name.
    const steps = escalations.filter(({ requirement, taken }) => requirement === index && taken > 0);
    const added = new Set(steps.flatMap(({ to }) => to));
    const groups = `${first.join(" or ")}${added.size === 0 ? "" : `, by now also ${[...added].join(" or ")}`}`;
    const whom = from.length === 0 ? (count.length === 0 ? "an approver" : "another approver") : groups;
    return count.length >= approve ? `${approve} of ${approve}` : `${count.length} of ${approve}, waiting for ${whom}`;
  });
  const rejected = votes.length - approving.length;
  const proof = need.method === AnswerMethod.UNSPECIFIED ? [] : [proofWords(need.method)];
  return [...states, ...proof, ...(rejected > 0 ? [`${rejected} of ${need.reject} rejected`] : [])].join("; ");
}

/** Says how persons prove at least who they are, such as "with a passkey". */
export const proofWords = (method: AnswerMethod): string => proofs[method] ?? "with a stronger proof";

const proofs: Readonly<Record<number, string>> = {
  [AnswerMethod.RELAY]: "at a relay or with a stronger proof",
  [AnswerMethod.CHANNEL]: "at a channel or with a stronger proof",
  [AnswerMethod.TOKEN]: "with a token or a sign-in",
  [AnswerMethod.SESSION]: "with a sign-in",
  [AnswerMethod.FRESH_SESSION]: "within five minutes of a sign-in",
  [AnswerMethod.PASSKEY]: "with a passkey",
};

/** Names the vote of a person that their next one replaces, as they sign it; see SignedAnswer.earlier. */
export function earlierVote({ votes }: Pick<PermissionRequest, "votes">, personId: string): string {
  const vote = votes.find(({ person }) => person?.id === personId);
  return vote ? `${vote.answerDigest} ${vote.time}` : "";
}

/** Says in whose place an approval of the reader counts; undefined where it counts for themselves alone. */
export function behalfWords({ onBehalfOf }: Pick<PermissionRequest, "onBehalfOf">): string | undefined {
  return onBehalfOf.length === 0 ? undefined : `your approval counts for ${namesOf(onBehalfOf)}, for this call only`;
}

/** Returns the grants that an approval of the reader may save. */
export const savableOffers = ({ offers, onBehalfOf }: Pick<PermissionRequest, "offers" | "onBehalfOf">) =>
  onBehalfOf.length === 0 ? offers : [];

const namesOf = (persons: readonly Person[]) => persons.map(({ name, subject }) => name || subject).join(" and ");

/** Names the persons who have voted, each with what they said. */
export function voteWords({ person, by, outcome, reason, onBehalfOf }: Vote): string {
  const what = outcome === PermissionOutcome.REJECT ? "rejected" : "approved";
  const others = namesOf(onBehalfOf);
  return `${what} by ${person?.name || by}${others && ` for ${others}`}${reason === "" ? "" : `: ${reason}`}`;
}
