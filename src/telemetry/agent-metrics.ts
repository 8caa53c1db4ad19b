import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Family } from "./families.ts";

/** Kinds of agents that become a label. Callers choose the name, so the number of labels has to be bounded. */
const maxKinds = 32;

/** Creates the counter of calls by the kind of agent that asked. */
export function createAgentMetrics() {
  const counts = new Map<string, Map<string, number>>();
  return {
    /** Counts the end of a call; one whose session names no agent is not counted. */
    ended({ requester, state }: Pick<ToolPart, "requester" | "state">): void {
      if (requester === undefined) return;
      const kind = counts.has(requester.kind) || counts.size < maxKinds ? requester.kind : "(other)";
      const outcomes = counts.get(kind) ?? new Map<string, number>();
      const outcome = outcomeOf(state);
      counts.set(kind, outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1));
    },
    families: (): Family[] => [
      {
        name: "toolgate_agent_calls_total",
        type: "counter",
        help: "Calls that ended, by the kind of agent that asked and by outcome.",
        samples: [...counts].flatMap(([kind, outcomes]) =>
          [...outcomes].map(([outcome, count]) => `{kind="${kind}",outcome="${outcome}"} ${count}`),
        ),
      },
    ],
  };
}

function outcomeOf(state: ToolPart["state"]): string {
  if (state.case !== "error") return "completed";
  return state.value.reason === ToolErrorReason.NOT_REPORTED ? "not_reported" : "error";
}
