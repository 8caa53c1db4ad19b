import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethod,
  type PasskeyReceipt,
  PermissionOutcome,
  type SignedAnswer,
  SignedAnswerSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { canonicalJson } from "../core/json.ts";
import { isFreshSignIn, type Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { earlierVote } from "../view/need.ts";
import { shownText } from "../view/view-lines.ts";
import type { Settlement } from "./ports.ts";

/** Checks the receipts of passkeys. */
export interface ReceiptCheck {
  storeId(): string;
  /** Returns the receipt to store, and how to note its use once the answer counts; refuses one that does not prove this answer. */
  check(
    signer: Principal,
    sent: PasskeyReceipt,
    answer: SignedAnswer,
  ): Promise<{ receipt: PasskeyReceipt; used(): Promise<void> }>;
}

/** Proof of who a person is, for one answer. */
export interface AnswerProof {
  readonly method?: AnswerMethod;
  readonly receipt?: PasskeyReceipt;
  used?(): Promise<void>;
}

/** Returns how the person of an answer proved who they are: by its receipt, otherwise by their sign-in. */
export async function proofOf(
  principal: Principal,
  request: PermissionRequest,
  response: PermissionResponse,
  { receipts, now }: { receipts?: ReceiptCheck | undefined; now: () => number },
): Promise<AnswerProof> {
  const { identity } = principal;
  if (identity === undefined) return {};
  if (response.receipt && receipts && response.reply !== PermissionReply.REJECT) {
    const answer = signedAnswer(request, response, identity.person.id, receipts.storeId());
    return { ...(await receipts.check(principal, response.receipt, answer)), method: AnswerMethod.PASSKEY };
  }
  const { FRESH_SESSION, SESSION } = AnswerMethod;
  const isFresh = identity.method === SESSION && isFreshSignIn(principal, now());
  return { method: isFresh && request.need?.method === FRESH_SESSION ? FRESH_SESSION : identity.method };
}

/** Returns what the person has to have signed: what this service received, about the request that it stores. */
function signedAnswer(
  request: PermissionRequest,
  { reply, offerId, expires, times, reason, input }: PermissionResponse,
  personId: string,
  storeId: string,
): SignedAnswer {
  const { id: permissionId, view, offers } = request;
  const isAlways = reply === PermissionReply.ALWAYS;
  return create(SignedAnswerSchema, {
    ...{ permissionId, viewDigest: view?.digest ?? "", shownDigest: sha256Of(shownText(request)) },
    outcome: input ? PermissionOutcome.EDITED : isAlways ? PermissionOutcome.ALWAYS : PermissionOutcome.ONCE,
    ...{ offerId, offerText: offers.find(({ id }) => id === offerId)?.text ?? "", expires, times, reason },
    editedDigest: input ? sha256Of(canonicalJson(input)) : "",
    ...{ earlier: earlierVote(request, personId), personId, storeId },
  });
}

/** Adds a receipt to the record of the answer that it proves. */
export function withReceipt(settlement: Settlement, receipt: PasskeyReceipt | undefined): Settlement {
  const { permissionId, outcome } = receipt?.answer ?? {};
  if (receipt === undefined) return settlement;
  const [settled] = settlement.settled;
  if (outcome === PermissionOutcome.EDITED && settled?.outcome !== outcome)
    throw new RequestError(ErrorReason.RECEIPT_REFUSED, "the edit changes nothing: approve the call as it is", {
      permission_id: permissionId ?? "",
    });
  const decisions = settlement.decisions?.map((record) =>
    record.permissionIds.includes(permissionId ?? "") ? { ...record, receipt } : record,
  );
  return { ...settlement, ...(decisions && { decisions }) };
}

const sha256Of = (text: string) => createHash("sha256").update(text).digest("hex");
