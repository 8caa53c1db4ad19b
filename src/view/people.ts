import { AnswerMethod, type Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { TextFilter } from "./outcomes.ts";

/** A person as people know them: by their name, otherwise by the key. */
export function personName({ name, issuer, subject }: Person, filter: TextFilter): string {
  return filter(name === "" ? `${issuer}:${subject}` : name);
}

/** The person behind an agent, such as ` for Ann`; empty if none is known. */
export function behindWords({ person }: { person?: Person | undefined }, filter: TextFilter): string {
  return person === undefined ? "" : ` for ${personName(person, filter)}`;
}

/** The proof of a person, such as `by a sign-in`. */
export function methodWords(method: AnswerMethod): string {
  if (method === AnswerMethod.SESSION) return "by a sign-in";
  if (method === AnswerMethod.RELAY) return "by a relay";
  if (method === AnswerMethod.CHANNEL) return "by a channel";
  return method === AnswerMethod.TOKEN ? "by a token" : "without proof";
}
