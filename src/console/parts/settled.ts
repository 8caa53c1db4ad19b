import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { isApproval, outcomeWords, settledUnseen } from "../../view/outcomes.ts";
import { capitalized } from "../../view/words.ts";
import { visibleText } from "./visible-text.ts";

/** The end of an ask; "unseen" if it was settled while the console was disconnected. */
export type SettledAsk = PermissionSettled | "unseen";

/** The outcome of an ask and who answered, such as `Rejected by alice: use the staging database`. */
export function settledText(settled: SettledAsk): string {
  return capitalized(settled === "unseen" ? settledUnseen : outcomeWords(settled, visibleText));
}

/** Returns true if the call can run; false as well if the outcome is not known. */
export function isApproved(settled: SettledAsk): boolean {
  return settled !== "unseen" && isApproval(settled.outcome);
}
