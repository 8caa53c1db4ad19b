import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../../src/core/request-error.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
import {
  addSession,
  answer,
  callRef,
  completed,
  logOf,
  type OpenedStore,
  openAskedCall,
  openCall,
  startCall,
} from "../../store/fixture.ts";
import { arm } from "./control.ts";

// node work.ts FOLDER KIND FROM STRIDE: works on a new store once for each place of a fault, under preload.c, and prints one line
// of JSON for each.

/** History of one store. */
export interface Outcome {
  at: number;
  /** Operations that failed. */
  fired: number;
  acknowledged: number;
  refused: number;
  violations: string[];
}

const [folder = "", kind = "", from = "", stride = ""] = process.argv.slice(2);
const controlFile = process.env.FAULT_CONTROL ?? "";

async function workWithFault(at: number): Promise<Outcome> {
  const directory = mkdtempSync(join(folder, "store-"));
  const store = await openIn(directory);
  await addSession(store);
  arm(controlFile, at, Number(kind));
  const done = await work(store);
  const fired = readFileSync(controlFile).readInt32LE(12);
  arm(controlFile, 0, Number(kind));
  const violations = [...done.violations, ...(await check(store, done.acknowledged, "as it runs"))];
  if (!(await succeeds(openCall(store, callRef("after"))))) violations.push("the store refuses after the fault");
  if (!(await store.calls.ready())) violations.push("the store is not ready after the fault");
  violations.push(...(await checkCopy(directory, done.acknowledged)));
  await store.close();
  violations.push(...(await checkReopened(directory, done.acknowledged, "after a restart")));
  rmSync(directory, { recursive: true });
  return { at, fired, acknowledged: done.acknowledged.size, refused: done.refused, violations };
}

async function openIn(directory: string): Promise<OpenedStore> {
  const store = await openSqliteStore({ directory });
  const unused = { advance() {}, reopen: () => Promise.reject(new Error("not used")) };
  return { ...store, ...unused, close: store.calls.close };
}

/** Takes steps of every kind; a step that is refused has to say that nothing was changed. */
async function work(store: OpenedStore) {
  const acknowledged = new Set<string>();
  const violations: string[] = [];
  let refused = 0;
  async function step(name: string, run: () => Promise<unknown>): Promise<void> {
    try {
      await run();
      acknowledged.add(name);
    } catch (error) {
      refused += 1;
      const isRefusal = error instanceof RequestError && error.reason === ErrorReason.STORE_UNAVAILABLE;
      // A step whose call was refused before finds no call.
      if (!isRefusal && !(error instanceof Error && /lost|no call|no ask|undefined/.test(error.message)))
        violations.push(`${name} was refused with ${error instanceof Error ? error.stack : error}`);
    }
  }
  for (let index = 0; index < 4; index++) {
    const ref = callRef(`call_${index}`);
    let fence: Awaited<ReturnType<typeof startCall>> | undefined;
    await step(`start ${ref.callId}`, async () => {
      fence = await startCall(store, ref);
    });
    const guard = fence && { fence };
    if (guard)
      await step(`end ${ref.callId}`, async () => {
        const ended = await store.calls.finishCall({ ref, guard, part: completed(ref, "output ".repeat(2_000)) });
        if (ended === undefined) throw new Error("lost");
      });
  }
  await step("ask per_1", () => openAskedCall(store, callRef("asked"), ["per_1"]));
  if (acknowledged.has("ask per_1"))
    await step("answer per_1", async () => {
      const { result } = await store.permissions.settle(await answer(store, callRef("asked"), "per_1"));
      if (result !== "won") throw new Error("lost");
    });
  await Promise.all(
    [5, 6, 7].map((index) => step(`open call_${index}`, () => openCall(store, callRef(`call_${index}`)))),
  );
  return { acknowledged, refused, violations };
}

/** Opens the store of a directory and checks it. */
async function checkReopened(directory: string, acknowledged: ReadonlySet<string>, when: string): Promise<string[]> {
  try {
    const store = await openIn(directory);
    const violations = await check(store, acknowledged, when);
    await store.close();
    return violations;
  } catch (error) {
    return [`the store does not open ${when}: ${error}`];
  }
}

function succeeds(promise: Promise<unknown>): Promise<boolean> {
  return promise.then(() => true).catch(() => false);
}

/** Compares a store with what was acknowledged. */
async function check(store: OpenedStore, acknowledged: ReadonlySet<string>, when: string): Promise<string[]> {
  const violations: string[] = [];
  for (const name of acknowledged) {
    const [kind, id = ""] = name.split(" ");
    const call = await store.calls.getCall("ses_root", kind === "ask" || kind === "answer" ? "asked" : id);
    const ask = kind === "ask" || kind === "answer" ? await store.permissions.findAsk(id) : undefined;
    const holds = {
      open: call !== undefined,
      start: call !== undefined && call.part.state.case !== "pending",
      end: call?.part.state.case === "completed",
      ask: ask !== undefined,
      answer: ask?.settled !== undefined,
    }[kind ?? ""];
    if (holds !== true) violations.push(`${name} was acknowledged and is gone ${when}`);
  }
  const numbers = (await logOf(store)).map(({ seq }) => Number(seq));
  if (numbers.some((seq, index) => seq !== index + 1)) violations.push(`the log has a gap ${when}: ${numbers}`);
  return violations;
}

/** Checks a copy of the files, as a kill would leave them. */
async function checkCopy(directory: string, acknowledged: ReadonlySet<string>): Promise<string[]> {
  const copy = `${directory}-copy`;
  mkdirSync(copy);
  for (const name of ["toolgate.sqlite", "toolgate.sqlite-wal"])
    if (existsSync(join(directory, name))) cpSync(join(directory, name), join(copy, name));
  try {
    const db = new DatabaseSync(join(copy, "toolgate.sqlite"));
    const [found] = db.prepare("PRAGMA quick_check").all();
    db.exec("DELETE FROM meta WHERE key = 'guard'");
    db.close();
    if (found?.quick_check !== "ok") return [`the database is damaged after a kill: ${JSON.stringify(found)}`];
    return await checkReopened(copy, acknowledged, "after a kill");
  } catch (error) {
    return [`the database cannot be checked after a kill: ${error}`];
  } finally {
    rmSync(copy, { recursive: true });
  }
}

for (let at = Number(from); ; at += Number(stride)) {
  const outcome = await workWithFault(at);
  if (outcome.fired === 0) break;
  console.log(JSON.stringify(outcome));
}
