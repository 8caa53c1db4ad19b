import { afterEach, describe } from "vitest";
import { casesOf } from "../breadth.ts";
import { asksContract } from "./contract/asks.ts";
import { auditContract } from "./contract/audit.ts";
import { delegatedContract } from "./contract/delegated.ts";
import { exportsContract } from "./contract/exports.ts";
import { grantsContract } from "./contract/grants.ts";
import { guardsContract } from "./contract/guards.ts";
import { leasesContract } from "./contract/leases.ts";
import { logContract } from "./contract/log.ts";
import { membershipContract } from "./contract/membership.ts";
import { noticesContract } from "./contract/notices.ts";
import { outputContract } from "./contract/output.ts";
import { recordsContract } from "./contract/records.ts";
import { remoteContract } from "./contract/remote.ts";
import { retentionContract } from "./contract/retention.ts";
import { sessionsContract } from "./contract/sessions.ts";
import { settleContract } from "./contract/settle.ts";
import { toolMemoryContract } from "./contract/tool-memory.ts";
import { transitionsContract } from "./contract/transitions.ts";
import { workerDirectoryContract } from "./contract/worker-directory.ts";
import type { OpenedStore, OpenStore } from "./fixture.ts";

/** One suite per family of ports, and one for the guards of all transitions. */
const suites = {
  SessionStore: sessionsContract,
  CallTransitions: transitionsContract,
  "delegated calls": delegatedContract,
  CallRecordReader: recordsContract,
  LeaseStore: leasesContract,
  "calls of workers": remoteContract,
  "AskOpener and AskStore": asksContract,
  "AskStore.settle": settleContract,
  NoticeStore: noticesContract,
  ExportStore: exportsContract,
  GrantStore: grantsContract,
  AuditLog: auditContract,
  EventLog: logContract,
  OutputStore: outputContract,
  ToolMemory: toolMemoryContract,
  StoreMembership: membershipContract,
  Retention: retentionContract,
  WorkerDirectory: workerDirectoryContract,
  guards: guardsContract,
};

/** The name of a suite of the contract. */
export type Suite = keyof typeof suites;
const allSuites = Object.keys(suites) as Suite[];
/** Suites that together take every step of a store. */
export const everyStep: readonly Suite[] = [
  "CallTransitions",
  "AskStore.settle",
  "NoticeStore",
  "StoreMembership",
  "Retention",
  "WorkerDirectory",
  "guards",
];

/** Contract of every store; `npm test` runs only the suites of the sample. */
export function storeContract(name: string, open: OpenStore, sample: readonly Suite[] = allSuites): void {
  const opened: OpenedStore[] = [];
  const openTracked: OpenStore = async (options) => {
    const store = await open(options);
    opened.push(store);
    return store;
  };

  describe(`store: ${name}`, () => {
    afterEach(async () => {
      for (const store of opened.splice(0)) await store.close();
    });
    for (const suite of casesOf(allSuites, sample)) describe(suite, () => suites[suite](openTracked));
  });
}
