import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { fromBinary, fromJsonString } from "@bufbuild/protobuf";
import {
  AnswerMethod,
  type AuditEntry,
  type DecisionRecord,
  DecisionRecordSchema,
  type PasskeyReceipt,
  PermissionOutcome,
  type Vote,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PersonRecordSchema } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { passkeyPlace, verifyReceipt } from "../../core/passkey-receipt.ts";
import { UsageError } from "../failure/command-error.ts";

/** Public keys of passkeys, by person and credential. */
type KeysOfPeople = ReadonlyMap<string, string>;

/** Reads the passkeys of persons from an output of `toolgate people --json`. */
export async function readPeopleKeys(file: string): Promise<KeysOfPeople> {
  const keys = new Map<string, string>();
  try {
    for await (const line of createInterface({ input: createReadStream(file) })) {
      const { id, passkeys } = fromJsonString(PersonRecordSchema, line, { ignoreUnknownFields: true });
      for (const passkey of passkeys) keys.set(`${id} ${passkey.id}`, fingerprintOf(passkey.publicKey));
    }
  } catch (cause) {
    const fix = "write it with `toolgate people --json`, and store it where others cannot write";
    throw new UsageError(`${file} is not a list of persons`, fix, { cause });
  }
  return keys;
}

/** A person's key that signed answers, and their number. */
export interface SignedBy {
  readonly person: string;
  readonly fingerprint: string;
  count: number;
}

/** Creates the check of receipts of an audit: each one by itself, then that each vote with a passkey has one. */
export function createReceiptCheck(people: KeysOfPeople | undefined) {
  const proven = new Set<string>();
  const claimed = new Map<string, AuditEntry>();
  const signers = new Map<string, SignedBy>();

  /** Describes what is wrong with the receipt of an entry; undefined for a good one, and for an entry that needs none. */
  async function problemOf(record: DecisionRecord): Promise<string | undefined> {
    if (record.settled?.settledWith) return undefined;
    const { receipt, method, person } = record;
    if (receipt === undefined)
      return method === AnswerMethod.PASSKEY ? "it says that a passkey signed it, and has no receipt" : undefined;
    const wrong = contradictionOf(record, receipt);
    if (wrong !== undefined) return `its receipt is for ${wrong}`;
    const signature = await verifyReceipt(receipt, placeOf(receipt), 0).then(
      () => undefined,
      (cause: unknown) => `its receipt is not valid: ${cause instanceof Error ? cause.message : cause}`,
    );
    if (signature !== undefined) return signature;
    const fingerprint = fingerprintOf(receipt.publicKey);
    const key = `${person?.id} ${Buffer.from(receipt.credentialId).toString("base64url")}`;
    if (people !== undefined && people.get(key) !== fingerprint)
      return `its key ${fingerprint.slice(0, 16)} is no passkey of ${person?.name || person?.id} in --people`;
    const signer = signers.get(key) ?? { person: person?.name || (person?.id ?? ""), fingerprint, count: 0 };
    signers.set(key, { ...signer, count: signer.count + 1 });
    return undefined;
  }

  return {
    signers,
    async problemOf(entry: AuditEntry): Promise<string | undefined> {
      const record = fromBinary(DecisionRecordSchema, entry.content);
      const problem = await problemOf(record);
      const own = voteOf(record);
      if (problem === undefined && record.receipt && own) proven.add(keyOf(record, own));
      for (const vote of record.settled?.votes ?? [])
        if (vote.method === AnswerMethod.PASSKEY) claimed.set(keyOf(record, vote), entry);
      return problem;
    },
    /** Returns entries with a vote whose receipt no entry has. */
    unproven: () => [...claimed].flatMap(([key, entry]) => (proven.has(key) ? [] : entry)),
  };
}

/** Returns the vote that a record adds: its own one, or the one that settled. */
function voteOf({ vote, settled, person }: DecisionRecord): Vote | undefined {
  return vote ?? settled?.votes.find((each) => each.person?.id === person?.id);
}

const keyOf = ({ permissionIds }: DecisionRecord, { person, time }: Vote) =>
  [permissionIds[0], person?.id, time].join(" ");

/** Says what a receipt is for, where that is not the answer of the record. */
function contradictionOf(record: DecisionRecord, { answer }: PasskeyReceipt): string | undefined {
  const { permissionIds, person, settled } = record;
  const vote = settled?.outcome === PermissionOutcome.EDITED ? undefined : voteOf(record);
  if (answer === undefined || answer.permissionId !== permissionIds[0]) return "another permission request";
  if (answer.personId !== person?.id) return "another person";
  if (answer.outcome !== (vote?.outcome ?? settled?.outcome)) return "another outcome";
  if (answer.reason !== (vote?.reason ?? settled?.reason)) return "another reason";
  if (vote === undefined) return undefined;
  if (answer.viewDigest !== vote.viewDigest) return "another view of the request";
  if (answer.offerId !== vote.offerId || answer.expires !== vote.expires) return "another offer";
  return undefined;
}

/** The page on which a receipt was made; the signature covers it. */
function placeOf({ clientDataJson }: PasskeyReceipt) {
  const { origin }: { origin?: unknown } = JSON.parse(Buffer.from(clientDataJson).toString() || "{}");
  return passkeyPlace(typeof origin === "string" && URL.canParse(origin) ? origin : undefined) ?? noPlace;
}

const noPlace = { origin: "https://invalid", rpId: "invalid" };

const fingerprintOf = (key: Uint8Array) => createHash("sha256").update(key).digest("hex");
