import { create } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import {
  type PasskeyReceipt,
  PasskeyReceiptSchema,
  PermissionOutcome,
  SignedAnswerSchema,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PersonService } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { canonicalJson } from "../../core/json.ts";
import { answerChallenge, hexDigest } from "../../core/signed-answer.ts";
import { earlierVote } from "../../view/need.ts";
import { shownText, viewDigestOf } from "../../view/view-lines.ts";
import type { AnswerOutcome } from "../inbox/answer.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** Time that a person has to sign. */
const timeout = 110_000;

/** Lets a person sign an answer with a passkey. The challenge is computed from what this page shows, not by the service. */
export async function signAnswer(
  { permissions, server }: Pick<ConsoleConnection, "permissions" | "server">,
  request: PermissionRequest,
  answer: AnswerOutcome,
  expires: number,
): Promise<PasskeyReceipt> {
  const { reply, input, offerId, times, reason } = {
    ...{ input: undefined, offerId: "", times: 0, reason: "" },
    ...answer,
  };
  const { nonce, rpId, credentialIds } = await permissions.beginStepUp({});
  checkPlace(rpId, server);
  const personId = server.person?.id ?? "";
  const approved = reply === PermissionReply.ALWAYS ? PermissionOutcome.ALWAYS : PermissionOutcome.ONCE;
  const signed = create(SignedAnswerSchema, {
    ...{ permissionId: request.id, viewDigest: viewDigestOf(request) },
    shownDigest: await hexDigest(shownText(request)),
    outcome: input ? PermissionOutcome.EDITED : approved,
    ...{ offerId, offerText: request.offers.find(({ id }) => id === offerId)?.text ?? "", expires, times, reason },
    editedDigest: input ? await hexDigest(canonicalJson(input)) : "",
    ...{ earlier: earlierVote(request, personId), personId, storeId: server.storeId },
  });
  const challenge = await answerChallenge(nonce, signed);
  const allowCredentials = credentialIds.map(descriptorOf);
  const made = await navigator.credentials.get({
    publicKey: { challenge, rpId, allowCredentials, userVerification: "required", timeout },
  });
  const { rawId, response } = made as PublicKeyCredential;
  const { authenticatorData, clientDataJSON, signature } = response as AuthenticatorAssertionResponse;
  return create(PasskeyReceiptSchema, {
    ...{ nonce, credentialId: new Uint8Array(rawId), authenticatorData: new Uint8Array(authenticatorData) },
    ...{ clientDataJson: new Uint8Array(clientDataJSON), signature: new Uint8Array(signature) },
  });
}

/** Makes a passkey for the person who is signed in. */
export async function addPasskey(
  service: Pick<Client<typeof PersonService>, "beginPasskey" | "finishPasskey">,
  { server }: Pick<ConsoleConnection, "server">,
): Promise<void> {
  const { nonce, rpId, credentialIds } = await service.beginPasskey({});
  checkPlace(rpId, server);
  const { id = "", subject = "", name = "" } = server.person ?? {};
  const made = await navigator.credentials.create({
    publicKey: {
      ...{ challenge: new Uint8Array(nonce), rp: { id: rpId, name: "Toolgate" }, attestation: "none", timeout },
      user: { id: new TextEncoder().encode(id), name: name || subject, displayName: name || subject },
      pubKeyCredParams: [-7, -8, -257].map((alg) => ({ type: "public-key", alg })),
      excludeCredentials: credentialIds.map(descriptorOf),
      authenticatorSelection: { userVerification: "required", residentKey: "preferred" },
    },
  });
  const { rawId, response } = made as PublicKeyCredential;
  const { attestationObject, clientDataJSON } = response as AuthenticatorAttestationResponse;
  await service.finishPasskey({
    ...{ nonce, credentialId: new Uint8Array(rawId), clientDataJson: new Uint8Array(clientDataJSON) },
    ...{ attestationObject: new Uint8Array(attestationObject), label: navigator.platform },
  });
}

const descriptorOf = (id: Uint8Array) => ({ type: "public-key" as const, id: new Uint8Array(id) });

/** Refuses a page at an address to which no passkey belongs, with the address that has them. */
function checkPlace(rpId: string, { publicUrl }: Pick<ConsoleConnection["server"], "publicUrl">): void {
  if (location.hostname !== rpId) throw new Error(`passkeys belong to ${publicUrl}: open this page there`);
}
