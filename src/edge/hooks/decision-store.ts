import type { DecisionMemory, UseDecision } from "../../agents/hooks/delegate.ts";

/** Maximum number of remembered decisions; the oldest is forgotten first, so that its result is not reported. */
const maxDecisions = 10_000;

/**
 * Creates the memory of the decisions that this replica sent to hooks, separate for each principal. It ends with the process: calls
 * whose report comes later end NOT_REPORTED.
 */
export function createDecisionStore(now: () => number = Date.now): (principalId: string) => DecisionMemory {
  const decisions = new Map<string, { decision: UseDecision; at: number }>();
  return (principalId) => {
    const keyOf = (key: string) => JSON.stringify([principalId, key]);
    return {
      async put(key, decision) {
        decisions.delete(keyOf(key));
        decisions.set(keyOf(key), { decision, at: now() });
        const oldest = decisions.size > maxDecisions ? decisions.keys().next().value : undefined;
        if (oldest !== undefined) decisions.delete(oldest);
      },
      async get(key) {
        const found = decisions.get(keyOf(key));
        return found && { decision: found.decision, ageMs: now() - found.at };
      },
      async remove(key) {
        decisions.delete(keyOf(key));
      },
    };
  };
}
