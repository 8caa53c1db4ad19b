import { randomBytes } from "node:crypto";
import * as z from "zod";
import type { StartedCall } from "../../core/durability.ts";

/** Memo that a call of `task` stores before a runner gets its run. */
const runMemo = z.object({ run: z.string() });

/** Creates the id of a run. It names the session of its call, so that every replica finds the call. Session ids have no dot. */
export const newRunId = (sessionId: string): string => `run_${randomBytes(8).toString("hex")}.${sessionId}`;

/** Returns the session that the id of a run names; empty if it names none. */
export const sessionOfRun = (run: string): string => /^run_[0-9a-f]{16}\.(.+)$/.exec(run)?.[1] ?? "";

/** Returns the run that a call of `task` waits for; undefined if its run ends with its replica. */
export function runOf({ memo }: Pick<StartedCall, "memo">): string | undefined {
  return runMemo.safeParse(memo).data?.run;
}
