import type { PasskeyReceipt } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { answerChallenge } from "./signed-answer.ts";

/** Page and domain of passkeys. */
export interface PasskeyPlace {
  readonly origin: string;
  readonly rpId: string;
}

/** Returns the place of passkeys of a service; undefined where it has none, since a passkey belongs to a domain. */
export function passkeyPlace(publicUrl: string | undefined): PasskeyPlace | undefined {
  if (publicUrl === undefined) return undefined;
  const { origin, hostname, protocol } = new URL(publicUrl);
  if (/^[\d.]+$|^\[/.test(hostname) || (protocol === "http:" && hostname !== "localhost")) return undefined;
  return { origin, rpId: hostname };
}

/**
 * Checks the signature of a receipt: its key, the type, the challenge over its answer, the page, the domain, that the person was
 * there and verified, and that the counter of the authenticator has grown. Returns the new counter; throws with the reason.
 */
export async function verifyReceipt(
  receipt: PasskeyReceipt,
  { origin, rpId }: PasskeyPlace,
  counter: number,
): Promise<number> {
  const { answer, nonce, publicKey, credentialId, clientDataJson, authenticatorData, signature } = receipt;
  if (answer === undefined) throw new Error("it does not say what was signed");
  const { crossOrigin } = JSON.parse(Buffer.from(clientDataJson).toString());
  if (crossOrigin === true) throw new Error("it was made in a frame of another page");
  const id = Buffer.from(credentialId).toString("base64url");
  const [{ verifyAuthenticationResponse }, challenge] = await Promise.all([
    import("@simplewebauthn/server"),
    answerChallenge(nonce, answer),
  ]);
  const { verified, authenticationInfo } = await verifyAuthenticationResponse({
    response: {
      ...{ id, rawId: id, type: "public-key", clientExtensionResults: {} },
      response: {
        clientDataJSON: Buffer.from(clientDataJson).toString("base64url"),
        authenticatorData: Buffer.from(authenticatorData).toString("base64url"),
        signature: Buffer.from(signature).toString("base64url"),
      },
    },
    expectedChallenge: Buffer.from(challenge).toString("base64url"),
    ...{ expectedOrigin: origin, expectedRPID: rpId, requireUserVerification: true },
    credential: { id, publicKey: new Uint8Array(publicKey), counter },
  });
  if (!verified) throw new Error("the signature is not that of the passkey");
  return authenticationInfo.newCounter;
}
