import type {
  PermissionEscalated,
  PermissionSettled,
  PermissionVoted,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { voteWords } from "../../view/need.ts";
import { outcomeWords } from "../../view/outcomes.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

export { isApproval } from "../../view/outcomes.ts";

/** The outcome of an ask and who answered, on one line that is harmless to the terminal. */
export function settledWords(settled: PermissionSettled): string {
  return outcomeWords(settled, terminalLine);
}

/** The last vote on a request that stays open, on one line. */
export function votedLine({ permissionId, votes }: PermissionVoted, paint: Paint): string {
  const last = votes.at(-1);
  return `${paint("dim", terminalLine(permissionId))}  ${last ? terminalLine(voteWords(last)) : "voted"}, and waits on`;
}

/** Says whom the steps of a permission request add. */
export function escalatedLine({ permissionId, escalations }: PermissionEscalated, paint: Paint): string {
  const taken = escalations.filter((each) => each.taken > 0);
  const names = [...new Set(taken.flatMap(({ to, channels }) => [...to, ...channels]))];
  return `${paint("dim", terminalLine(permissionId))}  nobody has settled it, so it also went to ${terminalLine(names.join(", "))}`;
}
