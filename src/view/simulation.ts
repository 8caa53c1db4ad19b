import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PolicyChange, SimulationSummary } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { actionWord } from "./decisions.ts";
import type { TextFilter } from "./outcomes.ts";

/** A change of decisions on one line, such as `deny → allow bash, agent build: 3 times, people rejected 2 of them`. */
export function changeWords(change: PolicyChange, filter: TextFilter): string {
  const { before, after, old, agent, decisions, rejected, approved } = change;
  const times = decisions === 1 ? "once" : `${decisions} times`;
  return [
    `${actionWord(before)} → ${actionWord(after)} ${filter(old?.permission ?? "")}, agent ${filter(agent)}: ${times}`,
    ...(rejected > 0 ? [`people rejected ${rejected} of them`] : []),
    ...(approved > 0 ? [`people approved ${approved} of them`] : []),
  ].join(", ");
}

/** Counts the decisions of a change that would be allowed although the rules denied or people rejected them. */
export function refusedIn({ before, after, decisions, rejected }: PolicyChange): number {
  if (after !== PermissionAction.ALLOW) return 0;
  return before === PermissionAction.DENY ? decisions : rejected;
}

/** The counts of a simulation, a line each: what was judged, then what was not and why. */
export function simulationLines(summary: SimulationSummary, filter: TextFilter): string[] {
  const { decisions, judged, changed, widened, asksSaved, asksAdded, notJudged, leftOut, moreChanges } = summary;
  return [
    `${judged} of ${decisions} decisions judged: ${changed} would change, ${widened} of them widen; ${asksSaved} questions saved, ${asksAdded} added`,
    ...(moreChanges > 0 ? [`${moreChanges} more kinds of changes are not shown`] : []),
    ...notJudged.map(({ reason, decisions }) => `not judged: ${decisions}, since ${filter(reason)}`),
    ...(leftOut > 0 ? [`not judged: ${leftOut}, since the time was over`] : []),
  ];
}
