import { describe, expect, test } from "vitest";
import { RequestError } from "../../../src/core/request-error.ts";
import { logOf, type OpenedStore, type OpenStore } from "../fixture.ts";
import { guardedTransitions } from "../guards.ts";

/** Generates the negative cases of every transition from the table of guards. */
export function guardsContract(open: OpenStore): void {
  describe.each(guardedTransitions)("$transition", ({ prepare, run, accepted, guards }) => {
    test("is accepted while every guard holds", async () => {
      const store = await open({ receivers: ["siem"] });
      const step = await prepare(store);
      expectAnswer(await outcomeOf(run(store, step)), accepted);
    });

    test.each(guards)("refuses and changes nothing by $guard: $violation", async ({ violate, answer }) => {
      const store = await open({ receivers: ["siem"] });
      const step = await prepare(store);
      const violating = (await violate(store, step)) ?? step;
      const before = await contentsOf(store);
      expectAnswer(await outcomeOf(run(store, violating)), answer);
      expect(await contentsOf(store)).toEqual(before);
    });
  });
}

/** Returns the answer, or the refusal or error in the form in which the table names them. */
async function outcomeOf(answer: Promise<unknown>): Promise<unknown> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof RequestError) return { refused: error.reason, limit: error.metadata.limit };
    return { thrown: error instanceof Error ? error.message : String(error) };
  }
}

function expectAnswer(outcome: unknown, expected: unknown): void {
  if (typeof expected !== "object" || expected === null) expect(outcome).toBe(expected);
  else if ("thrown" in expected) expect(outcome).toEqual({ thrown: expect.stringContaining(String(expected.thrown)) });
  else expect(outcome).toMatchObject(expected);
}

/** Reads everything that a step could have changed. */
async function contentsOf(store: OpenedStore) {
  const { calls, permissions } = store;
  const sessions = await calls.listSessions({ limit: 100 });
  const perSession = sessions.map(async ({ id, rootSessionId: root }) => ({
    log: await logOf(store, id),
    calls: await calls.listCalls({ sessionId: id, limit: 100 }),
    decisions: await permissions.listDecisions({ root, afterSeq: 0, limit: 100 }),
    versions: await permissions.grantsFor({ root, workspace: "default", agent: "build" }),
  }));
  return {
    sessions,
    perSession: await Promise.all(perSession),
    asks: await permissions.openAsks({ limit: 100 }),
    grants: await permissions.listGrants({ includeDead: true, limit: 100 }),
    orphans: await calls.orphans(),
    notices: await store.notices.listNotices(),
    exports: await exportsOf(store),
  };
}

/** Lists the cursors with records behind them; a chain that has none may be listed as well. */
async function exportsOf({ exports, permissions }: OpenedStore) {
  const pending = await exports.pendingExports("siem", { skip: 0, limit: 100 });
  const next = pending.map(({ root, seq }) => permissions.listDecisions({ root, afterSeq: seq, limit: 1 }));
  const found = await Promise.all(next);
  return pending.filter((_, index) => (found[index]?.length ?? 0) > 0);
}
