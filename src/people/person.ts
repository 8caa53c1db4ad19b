import { hash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { AnswerMethod, type Person, PersonSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Identity } from "../core/principal.ts";
import { randomText } from "./credential.ts";

/** Issuer of the persons who sign in with a code. */
export const localIssuer = "local";

/** Returns the person of an issuer. The key is (issuer, subject); a name can change, and two persons can have the same. */
export function personOf(issuer: string, subject: string, name = "", groups: readonly string[] = []): Person {
  const id = `prs_${hash("sha256", JSON.stringify([issuer, subject]), "hex").slice(0, 32)}`;
  // A name that was cut within a character, or sent so, could be stored and not be read again.
  return create(PersonSchema, { id, issuer, subject, name: name.toWellFormed(), groups: [...groups] });
}

/** Creates a person who signs in with a code. The subject is never used again, so a later person of that name is another one. */
export function newLocalPerson(name: string): Person {
  const word = name
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .slice(0, 40)
    .replaceAll(/^-|-$/g, "");
  return personOf(localIssuer, `${word === "" ? "person" : word}-${randomText(6)}`, name);
}

/** Returns who answers with a token that is given to no person: the token itself. */
export function tokenIdentity(id: string): Identity {
  return { person: personOf("token", id), method: AnswerMethod.TOKEN };
}

/** The person who answers while authentication is off. */
export const anonymousIdentity: Identity = {
  person: personOf("none", "anonymous"),
  method: AnswerMethod.UNSPECIFIED,
};

/** Names a person for a record or a message. */
export const personWords = ({ issuer, subject, name }: Person): string =>
  name === "" ? `${issuer}:${subject}` : `${name} (${issuer}:${subject})`;
