import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { outcomeWords } from "../../view/outcomes.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

export { isApproval } from "../../view/outcomes.ts";

/** The outcome of an ask and who answered, on one line that is harmless to the terminal. */
export function settledWords(settled: PermissionSettled): string {
  return outcomeWords(settled, terminalLine);
}
