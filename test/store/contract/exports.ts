import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { DecisionKind, DecisionRecordSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { day, leaseMs, type OpenedStore, type OpenStore, owner } from "../fixture.ts";

const record = (store: OpenedStore, root: string, digest: string) =>
  store.permissions.recordDecisions(root, [
    create(DecisionRecordSchema, { kind: DecisionKind.ALLOWED, sessionId: root, digest }),
  ]);

/** Exports what is pending for a receiver and returns its digests. */
async function exportTo(store: OpenedStore, receiver: string): Promise<string[]> {
  const { exports, permissions, calls } = store;
  const readAt = calls.now();
  const chains = await exports.pendingExports(receiver, { skip: 0, limit: 100 });
  const found = await Promise.all(
    chains.map(({ root, seq }) => permissions.listDecisions({ root, afterSeq: seq, limit: 100 })),
  );
  const cursors = found.flatMap((entries) => {
    const last = entries.at(-1);
    return last ? [{ root: last.rootSessionId, seq: Number(last.seq), hash: last.hash }] : [];
  });
  const ended = chains.flatMap(({ root }, index) => (found[index]?.length === 0 ? [root] : []));
  await exports.noteExport({ receiver, owner, cursors, ended, readAt });
  return found.flat().map((entry) => entry.record?.digest ?? "");
}

/** Contract of `ExportStore`, and of the retention of records that a receiver has not accepted. */
export function exportsContract(open: OpenStore): void {
  const openExports: OpenStore = async () => {
    const store = await open({ receivers: ["siem", "disk"] });
    for (const receiver of ["siem", "disk"]) await store.exports.claimExport(receiver, owner, leaseMs);
    return store;
  };

  test("each receiver gets the records of each chain once, in order, also after a restart", async () => {
    let store = await openExports();
    for (const digest of ["a1", "a2"]) await record(store, "ses_a", digest);
    await record(store, "ses_b", "b1");
    expect((await exportTo(store, "siem")).toSorted()).toEqual(["a1", "a2", "b1"]);
    expect(await exportTo(store, "siem")).toEqual([]);
    await record(store, "ses_a", "a3");
    store = await store.reopen();
    for (const receiver of ["siem", "disk"]) await store.exports.claimExport(receiver, owner, leaseMs);
    expect(await exportTo(store, "siem")).toEqual(["a3"]);
    expect((await exportTo(store, "disk")).filter((digest) => digest.startsWith("a"))).toEqual(["a1", "a2", "a3"]);
  });

  test("a chain is pending as long as a record is behind its cursor, and pages have no other ones", async () => {
    const store = await openExports();
    await record(store, "ses_a", "a1");
    await exportTo(store, "siem");
    store.advance(61_000);
    await exportTo(store, "siem");
    expect(await store.exports.pendingExports("siem", { skip: 0, limit: 10 })).toEqual([]);
    await record(store, "ses_a", "a2");
    await record(store, "ses_b", "b1");
    const page = (skip: number) => store.exports.pendingExports("siem", { skip, limit: 1 });
    const [first, second] = [await page(0), await page(1)];
    expect([...first, ...second].map(({ root, seq }) => [root, seq]).toSorted()).toEqual([
      ["ses_a", 1],
      ["ses_b", 0],
    ]);
    expect(await page(2)).toEqual([]);
  });

  test("retention waits for every receiver, and then removes what it has waited for", async () => {
    const store = await openExports();
    await record(store, "ses_a", "a1");
    await exportTo(store, "siem");
    store.advance(91 * day);
    await store.calls.sweep();
    expect(await exportTo(store, "disk")).toEqual(["a1"]);
    await store.calls.sweep();
    expect(await store.permissions.listDecisions({ root: "ses_a", afterSeq: 0, limit: 10 })).toEqual([]);
    expect([...(await store.exports.exportLosses()).values()]).toEqual([0, 0]);
  });

  test("retention waits only to its limit, and counts what a receiver has lost by that", async () => {
    const store = await openExports();
    for (const digest of ["a1", "a2"]) await record(store, "ses_a", digest);
    await exportTo(store, "siem");
    store.advance(121 * day);
    await store.calls.sweep();
    expect(await store.permissions.listDecisions({ root: "ses_a", afterSeq: 0, limit: 10 })).toEqual([]);
    expect(Object.fromEntries(await store.exports.exportLosses())).toEqual({ siem: 0, disk: 2 });
  });
}
