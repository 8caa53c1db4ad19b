import { createHash, generateKeyPairSync, randomBytes, sign } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type PasskeyReceipt,
  PasskeyReceiptSchema,
  type SignedAnswer,
  type SignedAnswerSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { canonicalJson } from "../../src/core/json.ts";

/** Parts of an assertion, each of which a test can change. */
export interface Assertion {
  clientData: Record<string, unknown>;
  rpId: string;
  flags: number;
  counter: number;
}

const userPresentAndVerified = 0x05;
const sha256 = (data: string | Uint8Array) => createHash("sha256").update(data).digest();
const uint32 = (value: number) => Buffer.from([value >>> 24, value >>> 16, value >>> 8, value]);

/** Creates an authenticator with one ES256 key, written by the text of WebAuthn and without the code of the product. */
export function createAuthenticator(origin: string) {
  const { publicKey, privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const { x = "", y = "" } = publicKey.export({ format: "jwk" });
  const credentialId = randomBytes(32);
  const rpId = new URL(origin).hostname;
  let counter = 0;
  const cose = Buffer.concat([
    Buffer.from("a5010203262001215820", "hex"),
    Buffer.from(x, "base64url"),
    Buffer.from("225820", "hex"),
    Buffer.from(y, "base64url"),
  ]);
  const dataOf = (fields: Pick<Assertion, "rpId" | "flags" | "counter">) =>
    Buffer.concat([sha256(fields.rpId), Buffer.from([fields.flags]), uint32(fields.counter)]);

  return {
    credentialId,
    /** The fields of FinishPasskey. */
    register(nonce: Uint8Array, change: Partial<Assertion> = {}) {
      const fields = { rpId, flags: userPresentAndVerified | 0x40, counter, ...change };
      const attested = Buffer.concat([Buffer.alloc(16), Buffer.from([0, credentialId.length]), credentialId, cose]);
      const authData = Buffer.concat([dataOf(fields), attested]);
      const attestationObject = Buffer.concat([
        Buffer.from("a363666d74646e6f6e656761747453746d74a068617574684461746158", "hex"),
        Buffer.from([authData.length]),
        authData,
      ]);
      const challenge = Buffer.from(nonce).toString("base64url");
      const clientData = { type: "webauthn.create", challenge, origin, ...change.clientData };
      return { nonce, credentialId, attestationObject, clientDataJson: Buffer.from(JSON.stringify(clientData)) };
    },
    /** Signs an answer, as a page would show it. */
    sign(
      nonce: Uint8Array,
      answer: Required<Omit<MessageInitShape<typeof SignedAnswerSchema>, "$typeName" | "$unknown">> | SignedAnswer,
      change: Partial<Assertion> = {},
    ): PasskeyReceipt {
      counter += 1;
      const { $typeName: _, $unknown: __, times, ...others } = { $typeName: "", $unknown: [], ...answer };
      // An answer without a limit is signed as before there were any.
      const signed = { ...others, ...(times > 0 && { times }) };
      const text = canonicalJson(JSON.parse(JSON.stringify(signed)));
      const challenge = sha256(Buffer.concat([Buffer.from("toolgate-answer-v1"), nonce, Buffer.from(text)]));
      const clientData = {
        ...{ type: "webauthn.get", challenge: challenge.toString("base64url"), origin, crossOrigin: false },
        ...change.clientData,
      };
      const authenticatorData = dataOf({ rpId, flags: userPresentAndVerified, counter, ...change });
      const clientDataJson = Buffer.from(JSON.stringify(clientData));
      const signature = sign("sha256", Buffer.concat([authenticatorData, sha256(clientDataJson)]), privateKey);
      return create(PasskeyReceiptSchema, { credentialId, nonce, authenticatorData, clientDataJson, signature });
    },
  };
}
