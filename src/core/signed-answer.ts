import type { SignedAnswer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { canonicalJson } from "./json.ts";

/** Returns the challenge that a passkey signs for an answer; see PasskeyReceipt. */
export async function answerChallenge(nonce: Uint8Array, answer: SignedAnswer): Promise<Uint8Array<ArrayBuffer>> {
  const { permissionId, viewDigest, shownDigest, outcome, offerId, offerText, expires, times } = answer;
  const { reason, editedDigest, earlier, personId, storeId } = answer;
  const fields = { ...{ permissionId, viewDigest, shownDigest, outcome, offerId, offerText, expires } };
  const signed = canonicalJson({
    ...fields,
    ...(times > 0 && { times }),
    ...{ reason, editedDigest, earlier, personId, storeId },
  });
  return await sha256(new Blob(["toolgate-answer-v1", new Uint8Array(nonce), signed]));
}

/** Returns the SHA-256 of a text, as hexadecimal digits, in a browser as well. */
export async function hexDigest(shown: string): Promise<string> {
  return [...(await sha256(new Blob([shown])))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function sha256(bytes: Blob): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", await bytes.arrayBuffer()));
}
