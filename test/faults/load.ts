import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Hosts } from "./hosts.ts";

/** Runs hosts that make one call after the other until the signal; approvers answer every second one. Returns the ends of calls. */
export async function work(hosts: Hosts, workers: number, stop: AbortSignal): Promise<ToolPart[]> {
  const parts: ToolPart[] = [];
  const one = async (worker: number) => {
    const sessionId = await hosts.newSession(worker);
    for (let i = 0; !stop.aborted; i += 1) {
      const callId = `${sessionId.slice(-12)}-${i}`;
      parts.push(await hosts.call({ sessionId, callId, at: worker + i, asks: i % 2 === 0, ticks: worker % 3 }));
    }
  };
  await Promise.all(Array.from({ length: workers }, (_, worker) => one(worker)));
  return parts;
}

/** Runs the work for each item in parallel lanes. */
export async function inParallel<T>(
  items: readonly T[],
  lanes: number,
  work: (item: T, lane: number) => Promise<void>,
): Promise<void> {
  const left = items.values();
  const workIn = async (_: unknown, lane: number) => {
    for (const item of left) await work(item, lane);
  };
  await Promise.all(Array.from({ length: lanes }, workIn));
}

/** Describes the number of calls by the way they ended. */
export function endsOf(parts: readonly ToolPart[]): string {
  const words = parts.map(({ state }) => (state.case === "error" ? reasonOf(state.value.reason) : String(state.case)));
  return [...Map.groupBy(words, (word) => word)].map(([word, all]) => `${all.length} ${word}`).join(", ");
}

function reasonOf(reason: ToolErrorReason): string {
  return Object.entries(ToolErrorReason).find(([, value]) => value === reason)?.[0] ?? String(reason);
}
