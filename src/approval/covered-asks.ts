import type { Grant } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { coversAsk } from "./grants.ts";
import { allOpenAsks } from "./open-asks.ts";
import type { AskRecord, PermissionStore } from "./ports.ts";

/** An open ask, and the new grant that covers it. */
export interface CoveredAsk {
  ask: AskRecord;
  grant: Grant;
}

/**
 * Finds the open asks of a tree that new grants cover, together with the grants that already exist. `answered` holds the
 * IDs of the permission requests that the answer settles anyway.
 */
export async function findCoveredAsks(
  store: PermissionStore,
  grants: readonly Grant[],
  root: string,
  answered: ReadonlySet<string>,
): Promise<{ covered: CoveredAsk[]; asksVersion?: number }> {
  const [{ workspace, agent } = { workspace: "", agent: "" }] = grants;
  if (grants.length === 0) return { covered: [] };
  // The version is read before the asks, so that the step that writes the settlement detects an ask opened in between.
  const { asksVersion } = await store.grantsFor({ root, workspace, agent });
  const open = (await allOpenAsks(store, root)).filter(({ request }) => !answered.has(request.id));
  const agents = [...new Set(open.map(({ request }) => request.agent))];
  const livingByAgent = new Map(
    await Promise.all(
      agents.map(async (agent) => [agent, (await store.grantsFor({ root, workspace, agent })).grants] as const),
    ),
  );
  const covered = open.flatMap((ask) => {
    const { request, part } = ask;
    const used = coversAsk([...grants, ...(livingByAgent.get(request.agent) ?? [])], request, part.tool);
    const grant = used?.find((each) => grants.includes(each));
    return grant ? [{ ask, grant }] : [];
  });
  return { covered, asksVersion };
}
