import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import {
  type AuditEntry,
  DecisionKind,
  type DecisionRecord,
  DecisionRecordSchema,
  GrantScope,
  PermissionOutcome,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  addSession,
  addTree,
  answer,
  ask,
  callRef,
  day,
  failed,
  fenceOf,
  grant,
  type OpenedStore,
  type OpenStore,
  openAskedCall,
  openCall,
  recordOf,
  running,
  saveGrant,
} from "../fixture.ts";

const record = (digest: string): DecisionRecord =>
  create(DecisionRecordSchema, { kind: DecisionKind.ALLOWED, sessionId: "ses_root", callId: "call_1", digest });

async function chain({ permissions }: OpenedStore, root = "ses_root", afterSeq = 0): Promise<AuditEntry[]> {
  return await permissions.listDecisions({ root, afterSeq, limit: 1_000 });
}

const digests = (entries: readonly AuditEntry[]) => entries.map(({ record }) => record?.digest);

/** Opens a call that starts in the same step. */
async function openAllowed(store: OpenedStore, callId: string, decisions: DecisionRecord[]): Promise<void> {
  const ref = callRef(callId);
  await openCall(store, ref, { start: running(ref), decisions });
}

/** Returns the sequence number of the first entry that breaks the chain; undefined if none does. */
function firstBroken(entries: readonly AuditEntry[]): number | undefined {
  const sha = (name: string, text: string | Uint8Array) => createHash(name).update(text).digest("hex");
  const broken = entries.find(({ seq, time, previous, hash, content }, i) => {
    const before = entries[i - 1];
    const isNext = before === undefined || (previous === before.hash && seq === before.seq + 1n);
    return !isNext || hash !== sha("sha1", `${previous}\n${seq}\n${time}\n${sha("sha256", content)}`);
  });
  return broken && Number(broken.seq);
}

/** Contract of `AuditLog`, which every transition writes. */
export function auditContract(open: OpenStore): void {
  test("decisions of no step have a chain, too: that of their tree, or one without a session, which is listed", async () => {
    const store = await open();
    await addTree(store);
    await openAllowed(store, "call_1", [record("d1")]);
    await store.permissions.recordDecisions("ses_root", [record("d2")]);
    for (const digest of ["s1", "s2"]) await store.permissions.recordDecisions("ses_none", [record(digest)]);
    const again = await store.reopen();
    await again.permissions.recordDecisions("ses_none", [record("s3")]);
    expect(digests(await chain(again))).toEqual(["d1", "d2"]);
    const own = await chain(again, "ses_none");
    expect(digests(own)).toEqual(["s1", "s2", "s3"]);
    expect(firstBroken(own)).toBeUndefined();
    expect(await again.permissions.listAudits({ limit: 10 })).toEqual(["ses_none"]);
  });

  test("lists the chains without a tree newest first, in pages", async () => {
    const store = await open();
    for (const id of ["ses_1", "ses_2", "ses_3", "ses_4"]) {
      if (id === "ses_2") await addSession(store, id);
      for (const digest of ["a", "b"]) await store.permissions.recordDecisions(id, [record(digest)]);
    }
    const page = (before?: string) => store.permissions.listAudits({ ...(before && { before }), limit: 2 });
    expect(await page()).toEqual(["ses_4", "ses_3"]);
    expect(await page("ses_3")).toEqual(["ses_1"]);
    expect(await page("ses_1")).toEqual([]);
  });

  test("appends the decisions of every step to the chain of its tree", async () => {
    const store = await open();
    await addTree(store);
    const ref = callRef("call_1", "ses_child");
    const opened = { record: await openCall(store, ref) };
    const fence = fenceOf(opened.record);
    const asks = [ask(ref, "per_1", store)];
    const asking = { fence, version: 1, asks, withdraw: [], message: "", maxOpenAsks: 10 };
    expect(await store.calls.openAsks({ ...asking, decisions: [record("asked")] })).toBe(true);
    const settlement = await answer(store, ref, "per_1", { decisions: [record("settled"), record("covered")] });
    expect(await store.permissions.settle(settlement)).toEqual({ result: "won" });
    const start = { fence, version: 3, part: running(ref), decisions: [record("started")] };
    expect(await store.calls.startCall(start)).toBe("started");
    await store.calls.finishCall({ ref, guard: { fence }, part: failed(ref), decisions: [record("ended")] });

    const entries = await chain(store);
    expect(digests(entries)).toEqual(["asked", "settled", "covered", "started", "ended"]);
    expect(entries.map(({ seq }) => seq)).toEqual([1n, 2n, 3n, 4n, 5n]);
    expect(entries[0]).toMatchObject({ previous: "", rootSessionId: "ses_root", time: store.calls.now() });
    expect(firstBroken(entries)).toBeUndefined();
    expect(digests(await chain(store, "ses_root", 3))).toEqual(["started", "ended"]);
    expect(await chain(store, "ses_child")).toEqual([]);
  });

  test("appends no decisions of a call that does not start in the step that opens it", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, callRef());
    const repeating = callRef("call_2");
    await openCall(store, repeating, { start: running(repeating), maxRepeats: 0, decisions: [record("void")] });
    expect(await chain(store)).toEqual([]);
  });

  test("appends only the decision of the winner of concurrent answers", async () => {
    const store = await open();
    await addSession(store);
    const ref = callRef();
    await openAskedCall(store, ref, ["per_1"]);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, i) => answer(store, ref, "per_1", { decisions: [record(`answer ${i}`)] })),
    );
    const results = await Promise.all(answers.map((each) => store.permissions.settle(each)));
    const winner = results.findIndex(({ result }) => result === "won");
    expect(digests(await chain(store))).toEqual([`answer ${winner}`]);
  });

  test("builds one chain from concurrent steps", async () => {
    const store = await open();
    await addSession(store);
    await Promise.all(
      Array.from({ length: 40 }, (_, i) => openAllowed(store, `call_${i}`, [record(`${i}`), record(`${i}`)])),
    );
    const entries = await chain(store);
    expect(entries).toHaveLength(80);
    expect(firstBroken(entries)).toBeUndefined();
  });

  test("breaks at the place of a change, a removal or an insertion", async () => {
    const store = await open();
    await addSession(store);
    for (let i = 1; i <= 5; i++) await openAllowed(store, `call_${i}`, [record(`${i}`)]);
    const entries = await chain(store);
    const [one, two, three, four, five] = entries;
    if (!one || !two || !three || !four || !five) throw new Error("there must be five entries");
    expect(firstBroken([one, two, { ...three, content: four.content }, four, five])).toBe(3);
    expect(firstBroken([one, two, four, five])).toBe(4);
    expect(firstBroken([one, two, two, three])).toBe(2);
    expect(firstBroken([one, { ...two, time: 1 }, three])).toBe(2);
  });

  test("appends a revocation once, in the tree that created the grant", async () => {
    const store = await open();
    await addTree(store);
    await saveGrant(store, grant("grt_1", { scope: GrantScope.PROJECT }));
    await store.permissions.revokeGrant("grt_1", [record("revoked")]);
    await store.permissions.revokeGrant("grt_1", [record("again")]);
    expect(digests(await chain(store))).toEqual(["revoked"]);
  });

  test("does not list existing trees among the removed ones", async () => {
    const store = await open();
    await addSession(store);
    await openAllowed(store, "call_1", [record("1")]);
    await store.calls.sweep();
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual([]);
  });

  test("continues the chain when the store is opened again", async () => {
    const store = await open();
    await addSession(store);
    await openAllowed(store, "call_1", [record("before")]);
    const again = await store.reopen();
    await openAllowed(again, "call_2", [record("after")]);
    const entries = await chain(again);
    expect(digests(entries)).toEqual(["before", "after"]);
    expect(firstBroken(entries)).toBeUndefined();
  });

  test("retains decisions for 90 days, longer than the session, and removes them from the beginning of the chain", async () => {
    const store = await open();
    await addSession(store);
    const reject = async (callId: string) => {
      const ref = callRef(callId);
      await openAskedCall(store, ref, [`per_of_${callId}`]);
      const end = await answer(store, ref, `per_of_${callId}`, {
        outcome: PermissionOutcome.REJECT,
        decisions: [record(callId)],
      });
      const version = end.calls[0]?.version ?? 0;
      await store.permissions.settle({ ...end, calls: [{ ref, version, part: failed(ref) }] });
    };
    for (const callId of ["call_1", "call_2", "call_3", "call_4"]) {
      await reject(callId);
      store.advance(25 * day);
    }
    store.advance(-11 * day);
    await store.calls.sweep();
    expect(digests(await chain(store))).toEqual(["call_1", "call_2", "call_3", "call_4"]);
    store.advance(day);
    await store.calls.sweep();
    const entries = await chain(store);
    expect(digests(entries)).toEqual(["call_2", "call_3", "call_4"]);
    expect(entries[0]?.seq).toBe(2n);
    expect(firstBroken(entries)).toBeUndefined();
    // The session has been idle for 30 days by then.
    store.advance(20 * day);
    await store.calls.sweep();
    expect(await store.calls.getSession("ses_root")).toBeUndefined();
    expect(digests(await chain(store))).toEqual(["call_2", "call_3", "call_4"]);
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual(["ses_root"]);
    expect(await store.permissions.listAudits({ before: "ses_root", limit: 10 })).toEqual([]);
    store.advance(90 * day);
    await store.calls.sweep();
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual([]);
    // A wider grant may outlive the tree that created it, and its audit.
    await store.permissions.recordDecisions("ses_root", [record("late")]);
    expect((await chain(store)).map(({ seq, previous }) => [seq, previous])).toEqual([[1n, ""]]);
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual(["ses_root"]);
  });

  test("lists the audit of a removed tree again once a wider grant that it created is revoked", async () => {
    const store = await open();
    await addTree(store);
    await saveGrant(store, grant("grt_1", { scope: GrantScope.PROJECT }));
    const ref = callRef("call_of_grt_1");
    const { version } = await recordOf(store, ref);
    await store.calls.finishCall({ ref, guard: { version }, part: failed(ref) });
    for (let month = 0; month < 3; month++) {
      store.advance(40 * day);
      await store.calls.sweep();
    }
    expect(await store.calls.getSession("ses_root")).toBeUndefined();
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual([]);
    await store.permissions.revokeGrant("grt_1", [record("revoked")]);
    expect(digests(await chain(store))).toEqual(["revoked"]);
    expect(await store.permissions.listAudits({ limit: 10 })).toEqual(["ses_root"]);
  });
}
