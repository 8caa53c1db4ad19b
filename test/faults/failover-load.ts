import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { History } from "./history.ts";
import type { Hosts } from "./hosts.ts";

/** Outcome of work during failovers. */
export interface FailoverWork {
  ends: ToolPart[];
  /** Sessions of which a client learned that acknowledged work is lost. */
  reported: Set<string>;
}

/**
 * Runs hosts that make one call after the other until the signal, in sessions of a few calls, since a lost session has to be
 * noticed. A host that gets STORE_CHANGED, or finds its session gone, goes on in another session. With `isWatched` each session
 * has a watcher that often connects again. Commands take up to `maxTicks` times 50 ms.
 */
export async function workThroughFailovers(
  hosts: Hosts,
  workers: number,
  stop: AbortSignal,
  { isWatched = false, maxTicks = 2 } = {},
): Promise<FailoverWork> {
  const work: FailoverWork = { ends: [], reported: new Set() };
  const one = async (worker: number) => {
    for (let round = 0; !stop.aborted; round += 1) {
      const sessionId = await hosts.newSession(worker + round);
      const leave = new AbortController();
      const watching = isWatched
        ? hosts
            .watch(sessionId, worker + round, leave.signal, { leavesAfter: 7 })
            .catch((error: unknown) => lossOf(error))
        : undefined;
      for (let i = 0; i < 6 && !stop.aborted; i += 1) {
        const callId = `${sessionId.slice(-12)}-${i}`;
        const wish = { sessionId, callId, at: worker + i, asks: i % 2 === 0, ticks: (worker + i) % (maxTicks + 1) };
        const end = await hosts.call(wish).catch((error: unknown) => lossOf(error));
        if (end === "lost") work.reported.add(sessionId);
        if (typeof end === "string") break;
        work.ends.push(end);
      }
      leave.abort();
      if ((await watching) === "lost") work.reported.add(sessionId);
    }
  };
  await Promise.all(Array.from({ length: workers }, (_, worker) => one(worker)));
  return work;
}

function lossOf(error: unknown): "lost" | "gone" {
  if (!(error instanceof ConnectError)) throw error;
  const [info] = error.findDetails(ErrorInfoSchema);
  if (info?.reason === "STORE_CHANGED") return "lost";
  // The log of the session ends before what this client has seen.
  if (error.code === Code.NotFound || error.code === Code.OutOfRange) return "gone";
  throw error;
}

/** Returns the history without the acknowledgements of sessions whose loss was reported; their runs still count. */
export function withoutReported(history: History, reported: ReadonlySet<string>): History {
  const stands = ({ sessionId }: { sessionId: string }) => !reported.has(sessionId);
  return {
    ...history,
    calls: history.calls.map((call) => {
      if (stands(call)) return call;
      const { ended: _, ...rest } = call;
      return { ...rest, parts: [], asks: false };
    }),
    answers: history.answers.filter(stands),
    watches: history.watches.filter(stands),
    reads: history.reads.filter(stands),
  };
}
