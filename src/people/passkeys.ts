import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { type StoredSecret, StoredSecretSchema } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethod,
  type PasskeyReceipt,
  PasskeyReceiptSchema,
  type SignedAnswer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type FinishPasskeyRequest,
  type Passkey,
  PasskeySchema,
  type PersonRecord,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { type PasskeyPlace, verifyReceipt } from "../core/passkey-receipt.ts";
import { isFreshSignIn, type Principal } from "../core/principal.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import type { Actor, People } from "./people.ts";

/** Passkeys of persons, with which they sign answers. */
export type Passkeys = ReturnType<typeof createPasskeys>;

type Signer = Pick<Principal, "id" | "identity" | "freshUntil">;

/** Time within which a passkey signs. */
const nonceMs = 120_000;
/** Passkeys of one person. */
const maxPasskeys = 10;
/** ES256, EdDSA and RS256. */
export const passkeyAlgorithms: readonly number[] = [-7, -8, -257];

/**
 * Creates the passkeys over their table. A nonce is no state: it carries its end and a MAC by a secret that all replicas share, so any
 * replica may check what another one began. It counts once, since each answer names the vote that it replaces.
 */
export function createPasskeys({
  table,
  secrets,
  people,
  place,
  now,
}: {
  table: RecordTable<Passkey>;
  secrets: RecordTable<StoredSecret>;
  people: Pick<People, "find" | "noteAbout">;
  /** Undefined where the service has no address for passkeys. */
  place: PasskeyPlace | undefined;
  now: () => number;
}) {
  const of = (personId: string) =>
    table
      .current()
      .filter((passkey) => passkey.personId === personId)
      .toSorted((one, other) => one.created - other.created);
  const secretsOfNonces = () => secrets.current().filter(({ id }) => id.startsWith(secretPrefix));

  /** Two replicas may each store a secret at first: nonces of both are accepted. */
  async function newNonce(purpose: Purpose, personId: string): Promise<Uint8Array> {
    await secrets.refresh();
    if (secretsOfNonces().length === 0) {
      const value = randomBytes(32);
      await secrets.put(
        create(StoredSecretSchema, { id: `${secretPrefix}${randomBytes(8).toString("hex")}`, value, created: now() }),
      );
    }
    const [secret] = secretsOfNonces();
    const body = Buffer.alloc(22);
    randomBytes(16).copy(body);
    body.writeUIntBE(Math.floor(now()) + nonceMs, 16, 6);
    return Buffer.concat([body, macOf(secret?.value ?? new Uint8Array(), body, purpose, personId)]);
  }

  async function nonceProblem(purpose: Purpose, personId: string, nonce: Uint8Array): Promise<string | undefined> {
    if (nonce.length !== 54) return "its nonce is not one of this service";
    const [body, mac] = [Buffer.from(nonce.subarray(0, 22)), nonce.subarray(22)];
    await secrets.refresh();
    if (!secretsOfNonces().some(({ value }) => timingSafeEqual(macOf(value, body, purpose, personId), mac)))
      return "its nonce is not one that this service gave to this person for it";
    return body.readUIntBE(16, 6) > now() ? undefined : "it is older than two minutes";
  }

  function signerOf({ identity }: Signer): PersonRecord {
    if (identity?.method !== AnswerMethod.SESSION)
      throw tooWeak("a passkey belongs to a person who is signed in: sign in in the console, not with a token");
    if (place === undefined)
      throw tooWeak("passkeys belong to a domain: the operator sets public_url to the https address of this service");
    const record = people.find(identity.person.id);
    if (record === undefined) throw tooWeak("this sign-in is of no person that this service knows; sign in again");
    return record;
  }

  const offer = (nonce: Uint8Array, personId: string) => ({
    ...{ nonce, rpId: place?.rpId ?? "" },
    credentialIds: of(personId).map(({ id }) => Buffer.from(id, "base64url")),
  });

  function checkFresh(signer: Signer): void {
    if (isFreshSignIn(signer, now())) return;
    throw tooWeak(
      "a passkey is added in the first five minutes of a sign-in at an identity provider, or with a code of `toolgate people invite`: sign out, sign in again, and add it then",
    );
  }

  return {
    of,
    refresh: table.refresh,
    /** Begins a registration. */
    async begin(signer: Signer) {
      const { id } = signerOf(signer);
      checkFresh(signer);
      return offer(await newNonce("passkey", id), id);
    },
    /** Stores the passkey that a browser made; returns its person. */
    async finish(signer: Signer, { nonce, label, ...made }: FinishPasskeyRequest): Promise<PersonRecord> {
      const record = signerOf(signer);
      checkFresh(signer);
      const problem = await nonceProblem("passkey", record.id, nonce);
      if (problem !== undefined) throw refusedReceipt(problem);
      const registered = await registration({ nonce, ...made }, place as PasskeyPlace).catch((cause: unknown) => {
        throw refusedReceipt(messageOf(cause), {}, cause);
      });
      await table.refresh();
      if (table.current().some(({ id }) => id === registered.id)) throw refusedReceipt("it is stored already");
      if (of(record.id).length >= maxPasskeys)
        throw new RequestError(ErrorReason.QUOTA_EXCEEDED, `a person has at most ${maxPasskeys} passkeys: remove one`, {
          limit: "passkeys",
        });
      const fields = { personId: record.id, label: label || "passkey", created: now() };
      await table.put(create(PasskeySchema, { ...fields, ...registered }));
      await note(signer, record, `added the passkey ${fields.label}`);
      return record;
    },
    /** Removes a passkey of a person; returns the person. */
    async remove(by: Actor, personId: string, id: string): Promise<PersonRecord> {
      const record = people.find(personId);
      const found = of(personId).find((passkey) => passkey.id === id);
      if (record === undefined || found === undefined)
        throw new RequestError(ErrorReason.NO_SUCH_PERSON, `person "${personId}" has no such passkey`, {
          person_id: personId,
        });
      await table.remove(id);
      await note(by, record, `the passkey ${found.label} was removed`);
      return record;
    },
    /** Begins the signing of an answer. */
    async beginStepUp(signer: Signer) {
      const { id } = signerOf(signer);
      await table.refresh();
      if (of(id).length === 0)
        throw tooWeak(
          "you have no passkey here: sign out, sign in again, and add one under People within five minutes",
        );
      return offer(await newNonce("answer", id), id);
    },
    /** Checks what a browser sent as proof of this answer; returns the receipt to store, and how to note its use. */
    async check(
      signer: Signer,
      sent: PasskeyReceipt,
      answer: SignedAnswer,
    ): Promise<{ receipt: PasskeyReceipt; used(): Promise<void> }> {
      const about = { permission_id: answer.permissionId };
      const { id } = signerOf(signer);
      await table.refresh();
      const credential = Buffer.from(sent.credentialId).toString("base64url");
      const passkey = of(id).find((each) => each.id === credential);
      if (passkey === undefined) throw refusedReceipt("it is no passkey of this person", about);
      const problem = await nonceProblem("answer", id, sent.nonce);
      if (problem !== undefined) throw refusedReceipt(problem, about);
      const receipt = create(PasskeyReceiptSchema, { ...sent, publicKey: passkey.publicKey, answer });
      const counter = await verifyReceipt(receipt, place as PasskeyPlace, passkey.counter).catch((cause: unknown) => {
        throw refusedReceipt(messageOf(cause), about, cause);
      });
      // One that is removed meanwhile stays removed.
      const used = (stored: Passkey | undefined) => stored && { ...stored, counter, used: now() };
      return { receipt, used: async () => void (await table.update(credential, used)) };
    },
  };

  function note(by: Actor, { person }: PersonRecord, reason: string): Promise<void> {
    return person ? people.noteAbout(by, person, reason) : Promise.resolve();
  }
}

type Purpose = "passkey" | "answer";
const secretPrefix = "nonce_";

function macOf(secret: Uint8Array, body: Uint8Array, purpose: Purpose, personId: string): Buffer {
  return createHmac("sha256", secret)
    .update(JSON.stringify([purpose, personId]))
    .update(body)
    .digest();
}

/** Checks a registration, of which nothing is attested; returns its id, key and counter. */
async function registration(
  { nonce, credentialId, clientDataJson, attestationObject }: Omit<FinishPasskeyRequest, "$typeName" | "label">,
  { origin, rpId }: PasskeyPlace,
): Promise<Pick<Passkey, "id" | "publicKey" | "counter">> {
  const id = Buffer.from(credentialId).toString("base64url");
  const { verifyRegistrationResponse } = await import("@simplewebauthn/server");
  const { registrationInfo } = await verifyRegistrationResponse({
    response: {
      ...{ id, rawId: id, type: "public-key", clientExtensionResults: {} },
      response: {
        clientDataJSON: Buffer.from(clientDataJson).toString("base64url"),
        attestationObject: Buffer.from(attestationObject).toString("base64url"),
      },
    },
    expectedChallenge: Buffer.from(nonce).toString("base64url"),
    ...{ expectedOrigin: origin, expectedRPID: rpId, supportedAlgorithmIDs: [...passkeyAlgorithms] },
  });
  if (registrationInfo?.credential.id !== id || registrationInfo.fmt !== "none")
    throw new Error("it is not the passkey that was asked for");
  const { publicKey, counter } = registrationInfo.credential;
  return { id, publicKey, counter };
}

const messageOf = (cause: unknown) => (cause instanceof Error ? cause.message : String(cause));

function refusedReceipt(why: string, about: Readonly<Record<string, string>> = {}, cause?: unknown): RequestError {
  return new RequestError(ErrorReason.RECEIPT_REFUSED, `the passkey did not sign this: ${why}; try again`, about, {
    cause,
  });
}

const tooWeak = (fact: string) => new RequestError(ErrorReason.METHOD_TOO_WEAK, fact);
