import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { mountSmallDisk } from "../tmpfs.ts";
import {
  addSession,
  answer,
  askMs,
  callRef,
  completed,
  failed,
  type OpenedStore,
  openAskedCall,
  openCall,
  refusal,
  startCall,
} from "./fixture.ts";

const unavailable = { reason: ErrorReason.STORE_UNAVAILABLE };
const mebibyte = 1024 * 1024;
const hundred = Array.from({ length: 100 }, (_, index) => index);

test("with 1 MiB left new work is refused, and 100 rejects, 100 expiries and 100 ends succeed", async () => {
  const { store, disk, reserve } = await openOnSmallDisk({});
  const fences = await Promise.all(hundred.map((index) => startCall(store, callRef(`run_${index}`))));
  for (const index of hundred) {
    await openAskedCall(store, callRef(`reject_${index}`), [`per_r${index}`]);
    await openAskedCall(store, callRef(`expire_${index}`), [`per_e${index}`]);
  }
  // Control: while there is space, calls are accepted and the store is ready.
  await openCall(store, callRef("before"));
  expect(await store.calls.ready()).toBe(true);

  disk.fill(mebibyte);
  expect(disk.free()).toBeLessThanOrEqual(mebibyte);
  await store.calls.ready();
  expect(existsSync(reserve)).toBe(false);
  // The release also truncates the log, which may free enough for new work.
  disk.fill(5 * mebibyte);
  expect(await store.calls.ready()).toBe(false);
  expect(await refusal(openCall(store, callRef("new")))).toMatchObject(unavailable);
  expect(await refusal(addSession(store, "ses_new"))).toMatchObject(unavailable);
  expect((await openCall(store, callRef("before"))).ref.callId).toBe("before");

  for (const index of hundred) {
    expect(await settleCall(store, "reject", index)).toEqual({ result: "won" });
    const [ref, fence] = [callRef(`run_${index}`), fences[index]];
    if (fence === undefined) throw new Error("the call was not started");
    expect(await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) })).toBeDefined();
  }
  store.advance(askMs);
  for (const index of hundred) expect(await settleCall(store, "expire", index)).toEqual({ result: "won" });

  disk.empty();
  expect(await store.calls.ready()).toBe(true);
  await openCall(store, callRef("after"));
  await expect.poll(() => existsSync(reserve)).toBe(true);
});

test("on a full disk a step releases the reserve and succeeds", async () => {
  const { store, disk, reserve } = await openOnSmallDisk({});
  const started = await startCalls(store);
  disk.fill(0);
  expect(await endUntilRefused(store, started)).toBe("all ended");
  expect(existsSync(reserve)).toBe(false);
});

test("on a full disk a reserve that cannot be deleted leaves steps refused, and work goes on once there is space", async () => {
  const { store, disk, reserve } = await openOnSmallDisk({});
  const started = await startCalls(store);
  rmSync(reserve);
  mkdirSync(reserve);
  disk.fill(0);
  expect(await endUntilRefused(store, started)).toBe("refused");
  disk.empty();
  await store.calls.ready();
  await openCall(store, callRef("after"));
});

test("a store opens on a full disk, and open work ends", async () => {
  const { store, disk, directory, reserve } = await openOnSmallDisk({});
  await openAskedCall(store, callRef("reject_0"), ["per_r0"]);
  disk.fill(0);
  await store.close();
  const again = await openSqliteStore({ directory, space: {} });
  onTestFinished(() => again.calls.close());
  expect(existsSync(reserve)).toBe(false);
  expect(await settleCall({ ...store, ...again }, "reject", 0)).toEqual({ result: "won" });
  expect(await again.calls.ready()).toBe(false);
});

test("control: on a full disk without a reserve a step is refused", async () => {
  const { store, disk } = await openOnSmallDisk(undefined);
  const started = await startCalls(store);
  disk.fill(0);
  expect(await endUntilRefused(store, started)).toBe("refused");
});

test("a store whose commit failed is not ready until one succeeds, or probes do for 10 s", async () => {
  const { store, disk } = await openOnSmallDisk(undefined);
  const fail = async (prefix: string) => {
    const started = await startCalls(store, prefix);
    disk.fill(0);
    expect(await endUntilRefused(store, started)).toBe("refused");
    disk.empty();
  };
  await fail("first");
  expect(await store.calls.ready()).toBe(false);
  await openCall(store, callRef("after"));
  expect(await store.calls.ready()).toBe(true);
  await fail("second");
  expect(await store.calls.ready()).toBe(false);
  store.advance(10_000);
  expect(await store.calls.ready()).toBe(true);
});

test("each readiness probe writes to the disk", async () => {
  const { store, directory } = await openOnSmallDisk(undefined);
  const log = () => readFileSync(join(directory, "toolgate.sqlite-wal"));
  for (let round = 0; round < 3; round++) {
    const before = log();
    expect(await store.calls.ready()).toBe(true);
    expect(log().equals(before)).toBe(false);
  }
});

/** Opens a store on a disk of 48 MiB, with a session; its reserve is written. */
async function openOnSmallDisk(space: { minFreeBytes?: number } | undefined) {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-full-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const disk = mountSmallDisk(directory, 48);
  let time = Date.now();
  const opened = await openSqliteStore({ directory, clock: () => time, ...(space && { space }) });
  const store: OpenedStore = {
    ...opened,
    advance(ms) {
      time += ms;
    },
    reopen: () => Promise.reject(new Error("this store is not opened again")),
    close: opened.calls.close,
  };
  onTestFinished(() => opened.calls.close().catch(() => {}));
  const reserve = join(directory, "reserve");
  if (space !== undefined) await expect.poll(() => existsSync(reserve) && statSync(reserve).size).toBe(4 * mebibyte);
  await addSession(store);
  return { store, disk, directory, reserve };
}

async function settleCall(store: OpenedStore, kind: "reject" | "expire", index: number) {
  const ref = callRef(`${kind}_${index}`);
  const expired = kind === "expire";
  const outcome = expired ? PermissionOutcome.EXPIRED : PermissionOutcome.REJECT;
  const settlement = await answer(store, ref, `per_${kind[0]}${index}`, { outcome, expired });
  const [call] = settlement.calls;
  if (call === undefined) throw new Error("the settlement has no call");
  return store.permissions.settle({ ...settlement, calls: [{ ...call, part: failed(ref) }] });
}

type Started = { ref: ReturnType<typeof callRef>; fence: Awaited<ReturnType<typeof startCall>> };

/** Starts a hundred calls, one after the other: a reserve that was just written is known by then. */
async function startCalls(store: OpenedStore, prefix = "run"): Promise<Started[]> {
  const started: Started[] = [];
  for (const index of hundred) {
    const ref = callRef(`${prefix}_${index}`);
    started.push({ ref, fence: await startCall(store, ref) });
  }
  return started;
}

/** Ends calls with outputs that do not fit in what the write-ahead log has on disk. */
async function endUntilRefused(store: OpenedStore, started: readonly Started[]): Promise<"all ended" | "refused"> {
  for (const { ref, fence } of started) {
    const end = store.calls.finishCall({ ref, guard: { fence }, part: completed(ref, "x".repeat(8_000)) });
    const error: unknown = await end.then(
      () => undefined,
      (cause) => cause,
    );
    if (error === undefined) continue;
    expect(await refusal(Promise.reject(error))).toMatchObject(unavailable);
    return "refused";
  }
  return "all ended";
}
