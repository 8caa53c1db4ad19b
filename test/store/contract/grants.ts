import { expect, test } from "vitest";
import { GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  addSession,
  addTree,
  callRef,
  fenceOf,
  grant,
  kinds,
  logOf,
  type OpenedStore,
  type OpenStore,
  openCall,
  running,
  saveGrant,
} from "../fixture.ts";

const { AGENT, PROJECT, SESSION } = GrantScope;
const here = { root: "ses_root", workspace: "default", agent: "build" };
const elsewhere = { ...here, root: "ses_other" };

async function openTrees(open: OpenStore): Promise<OpenedStore> {
  const store = await open();
  await addTree(store);
  await addSession(store, "ses_other");
  return store;
}

async function serving({ permissions }: OpenedStore, tree: typeof here): Promise<string[]> {
  return (await permissions.grantsFor(tree)).grants.map(({ id }) => id).sort();
}

async function rulesVersion({ permissions }: OpenedStore, root: string): Promise<number> {
  return (await permissions.grantsFor({ ...here, root })).rulesVersion;
}

/** Contract of `GrantStore`. */
export function grantsContract(open: OpenStore): void {
  test("serves a tree, an agent or a project, by the scope of the grant", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_session", { scope: SESSION }));
    await saveGrant(store, grant("grt_agent", { scope: AGENT, agent: "build" }));
    await saveGrant(store, grant("grt_project", { scope: PROJECT }));
    expect(await serving(store, here)).toEqual(["grt_agent", "grt_project", "grt_session"]);
    expect(await serving(store, elsewhere)).toEqual(["grt_agent", "grt_project"]);
    expect(await serving(store, { ...elsewhere, agent: "plan" })).toEqual(["grt_project"]);
    expect(await serving(store, { ...elsewhere, workspace: "another" })).toEqual([]);
    expect(await serving(store, { ...here, workspace: "another" })).toEqual(["grt_session"]);
  });

  test("returns a grant as saved", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { expires: store.calls.now() + 1_000 }));
    expect(await store.permissions.getGrant("grt_1")).toEqual(grant("grt_1", { expires: store.calls.now() + 1_000 }));
    expect(await store.permissions.getGrant("grt_none")).toBeUndefined();
  });

  test("raises the rules version of the tree that creates a grant", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1"));
    expect(await rulesVersion(store, "ses_root")).toBe(1);
    await saveGrant(store, grant("grt_2", { scope: PROJECT }));
    expect(await rulesVersion(store, "ses_root")).toBe(2);
    expect(await rulesVersion(store, "ses_other")).toBe(0);
  });

  test("records when a call last started with a grant", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1"));
    await saveGrant(store, grant("grt_2", { scope: PROJECT }));
    store.advance(1_000);
    const ref = callRef("call_1", "ses_other", "ses_other");
    const own = callRef("call_2");
    const fences = [fenceOf(await openCall(store, ref)), fenceOf(await openCall(store, own))] as const;
    const lastUsed = async (id: string) => (await store.permissions.getGrant(id))?.lastUsed;
    expect([await lastUsed("grt_1"), await lastUsed("grt_2")]).toEqual([0, 0]);
    expect(await store.permissions.adoptGrant("ses_other", "grt_2")).toBe(true);
    await store.calls.startCall({ fence: fences[0], version: 1, grantIds: ["grt_2"], part: running(ref) });
    await store.calls.startCall({ fence: fences[1], version: 1, grantIds: ["grt_1"], part: running(own) });
    const now = store.calls.now();
    expect([await lastUsed("grt_1"), await lastUsed("grt_2")]).toEqual([now, now]);
    const { grants } = await store.permissions.grantsFor(here);
    expect(grants.map(({ lastUsed }) => lastUsed)).toEqual([now, now]);
  });

  test("serves a grant until it expires", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { scope: PROJECT, expires: store.calls.now() + 1_000 }));
    store.advance(999);
    expect(await serving(store, elsewhere)).toEqual(["grt_1"]);
    store.advance(1);
    expect(await serving(store, elsewhere)).toEqual([]);
  });

  test("serves a grant with a limit to as many calls of its tree, each counted once", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { times: 5, left: 5 }));
    const calls = await Promise.all(
      Array.from({ length: 20 }, (_, index) => openCall(store, callRef(`call_${index}`))),
    );
    const counted = [{ id: "grt_1", times: 5 }];
    const start = async (record: (typeof calls)[number]) => {
      const { ref } = record;
      return await store.calls.startCall({ fence: fenceOf(record), version: 1, counted, part: running(ref) });
    };
    const results = await Promise.all(calls.map(start));
    expect(results.filter((result) => result === "started")).toHaveLength(5);
    expect(results.filter((result) => result === "retry")).toHaveLength(15);
    expect(await serving(store, here)).toEqual([]);
    const [user] = calls.filter((_, i) => results[i] === "started");
    const { grants } = await store.permissions.grantsFor({ ...here, call: user?.ref });
    expect(grants).toMatchObject([{ id: "grt_1", times: 5, left: 1 }]);
    expect(await store.permissions.getGrant("grt_1")).toMatchObject({ times: 5, left: 0 });
    const page = { limit: 10, includeDead: false };
    expect(await store.permissions.listGrants(page)).toEqual([]);
    expect(await store.permissions.listGrants({ ...page, includeDead: true })).toMatchObject([
      { id: "grt_1", left: 0 },
    ]);
  });

  test("takes no use of a grant unless the call starts, and one of each for a call with several", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { times: 2, left: 2 }));
    await saveGrant(store, grant("grt_2", { times: 1, left: 1 }));
    const [one, other] = [await openCall(store, callRef("call_1")), await openCall(store, callRef("call_2"))] as const;
    const counted = [
      { id: "grt_1", times: 2 },
      { id: "grt_2", times: 1 },
    ];
    const start = ({ ref, ...record }: typeof one, version = 1) =>
      store.calls.startCall({ fence: fenceOf({ ...record, ref }), version, counted, part: running(ref) });
    const left = async () =>
      await Promise.all(["grt_1", "grt_2"].map(async (id) => (await store.permissions.getGrant(id))?.left));
    expect([await start(one, 2), await left()]).toEqual(["retry", [2, 1]]);
    expect([await start(one), await left()]).toEqual(["started", [1, 0]]);
    expect([await start(other), await left()]).toEqual(["retry", [1, 0]]);
  });

  test("gives a wider grant with a limit to as many calls of all trees, and to one of them once", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { scope: PROJECT, times: 5, left: 5 }));
    const refs = Array.from({ length: 20 }, (_, i) =>
      i % 2 === 0 ? callRef(`call_${i}`) : callRef(`call_${i}`, "ses_other", "ses_other"),
    );
    const taken = await Promise.all(refs.map((ref) => store.permissions.takeGrant(ref, "grt_1")));
    expect(taken.filter(Boolean)).toHaveLength(5);
    expect(await Promise.all(refs.map((ref) => store.permissions.takeGrant(ref, "grt_1")))).toEqual(taken);
    expect(await serving(store, elsewhere)).toEqual([]);
    const user = refs[taken.indexOf(true)];
    const { grants } = await store.permissions.grantsFor({ ...here, call: user });
    expect(grants).toMatchObject([{ id: "grt_1", left: 1 }]);
  });

  test("stops serving a revoked grant and emits the revocation once", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { scope: PROJECT }));
    const revoked = await store.permissions.revokeGrant("grt_1");
    expect(revoked).toMatchObject({ id: "grt_1", revoked: store.calls.now() });
    expect(await serving(store, here)).toEqual([]);
    store.advance(1_000);
    expect(await store.permissions.revokeGrant("grt_1")).toEqual(revoked);
    const emitted = kinds(await logOf(store)).filter((kind) => kind.startsWith("grt_1"));
    expect(emitted).toEqual(["grt_1 granted", "grt_1 revoked"]);
  });

  test("starts no call after a concurrent revocation was answered", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1"));
    const { rulesVersion } = await store.permissions.grantsFor(here);
    const calls = await Promise.all(
      Array.from({ length: 20 }, (_, index) => openCall(store, callRef(`call_${index}`))),
    );
    const order: string[] = [];
    const start = async (record: (typeof calls)[number]) => {
      const fence = fenceOf(record);
      order.push(await store.calls.startCall({ fence, version: 1, rulesVersion, part: running(record.ref) }));
    };
    const revoke = async () => {
      await store.permissions.revokeGrant("grt_1");
      order.push("revoked");
    };
    const inTurn = async (records: typeof calls) => {
      for (const record of records) await start(record);
    };
    await Promise.all([inTurn(calls.slice(0, 10)), revoke(), inTurn(calls.slice(10))]);
    expect(order.slice(order.indexOf("revoked"))).not.toContain("started");
    expect(order.filter((step) => step === "retry").length).toBeGreaterThan(0);
  });

  test("leaves trees that do not use a revoked grant unchanged", async () => {
    const store = await openTrees(open);
    await saveGrant(store, grant("grt_1", { scope: PROJECT }));
    await store.permissions.revokeGrant("grt_1");
    expect(await rulesVersion(store, "ses_other")).toBe(0);
  });

  test("lists grants newest first, live ones or all, of a tree or of all, in pages", async () => {
    const store = await openTrees(open);
    for (const id of ["grt_b", "grt_a", "grt_c"]) await saveGrant(store, grant(id));
    await saveGrant(store, grant("grt_other", { sessionId: "ses_other" }));
    await saveGrant(store, grant("grt_wide", { sessionId: "ses_other", scope: PROJECT }));
    await store.permissions.revokeGrant("grt_a");
    type Filter = Parameters<typeof store.permissions.listGrants>[0];
    const list = async (filter: Filter) => (await store.permissions.listGrants(filter)).map(({ id }) => id);
    const all = { includeDead: true, limit: 10 };
    expect(await list(all)).toEqual(["grt_wide", "grt_other", "grt_c", "grt_a", "grt_b"]);
    expect(await list({ ...all, includeDead: false })).toEqual(["grt_wide", "grt_other", "grt_c", "grt_b"]);
    const tree = { root: "ses_root", workspace: "default" };
    expect(await list({ ...all, tree })).toEqual(["grt_wide", "grt_c", "grt_a", "grt_b"]);
    expect(await list({ ...all, tree: { ...tree, workspace: "another" } })).toEqual(["grt_c", "grt_a", "grt_b"]);
    expect(await list({ ...all, limit: 2 })).toEqual(["grt_wide", "grt_other"]);
    expect(await list({ ...all, before: "grt_other", limit: 2 })).toEqual(["grt_c", "grt_a"]);
  });
}
