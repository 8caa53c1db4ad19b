import { createHash } from "node:crypto";
import type { PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { canonicalJson } from "../core/canonical-json.ts";

type AnswerContent = Pick<PermissionResponse, "reply"> &
  Partial<Pick<PermissionResponse, "message" | "offerId" | "input" | "wholeCall" | "expires" | "answers">>;

/** Identifies the content of an answer. `expected_digest` and `reply_id` describe the request that carries it, and are left out. */
export function answerDigest({
  reply,
  message,
  offerId,
  input,
  wholeCall,
  expires,
  answers = [],
}: AnswerContent): string {
  const content = [reply, message ?? "", offerId ?? "", input ? canonicalJson(input) : "", wholeCall === true];
  return createHash("sha256")
    .update(JSON.stringify([...content, expires ?? 0, ...answers.map(({ values }) => values)]))
    .digest("base64url");
}
