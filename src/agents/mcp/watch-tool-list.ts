import { setTimeout as sleep } from "node:timers/promises";
import { allTools } from "./list-tools.ts";
import type { McpSession } from "./mcp-session.ts";
import type { ToolgateApi } from "./toolgate-api.ts";

const everyMs = 5_000;
/** Interval while the service does not answer. */
const retryMs = 1_000;

/**
 * Reports each change of the list of tools, until the signal is aborted. A service that could not be reached at first, and now
 * can, is a change: the client has no list yet.
 */
export async function watchToolList(
  { api, session, onChange }: { api: ToolgateApi; session: () => Promise<McpSession>; onChange: () => Promise<void> },
  signal: AbortSignal,
): Promise<void> {
  let known: string | undefined;
  let isFirst = true;
  while (!signal.aborted) {
    const list = await session()
      .then(async ({ sessionId }) => JSON.stringify(await allTools(api, sessionId)))
      .catch(() => undefined);
    if (list !== undefined && list !== known && !isFirst) await onChange().catch(() => undefined);
    known = list ?? known;
    isFirst = false;
    const pauseMs = list === undefined ? retryMs : everyMs;
    await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => undefined);
  }
}
