import { afterEach, describe } from "vitest";
import { asksContract } from "./contract/asks.ts";
import { auditContract } from "./contract/audit.ts";
import { delegatedContract } from "./contract/delegated.ts";
import { grantsContract } from "./contract/grants.ts";
import { guardsContract } from "./contract/guards.ts";
import { leasesContract } from "./contract/leases.ts";
import { logContract } from "./contract/log.ts";
import { membershipContract } from "./contract/membership.ts";
import { outputContract } from "./contract/output.ts";
import { recordsContract } from "./contract/records.ts";
import { retentionContract } from "./contract/retention.ts";
import { sessionsContract } from "./contract/sessions.ts";
import { settleContract } from "./contract/settle.ts";
import { toolMemoryContract } from "./contract/tool-memory.ts";
import { transitionsContract } from "./contract/transitions.ts";
import type { OpenedStore, OpenStore } from "./fixture.ts";

/** Contract of every store: one suite per family of ports, and one for the guards of all transitions. */
export function storeContract(name: string, open: OpenStore): void {
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
    describe("SessionStore", () => sessionsContract(openTracked));
    describe("CallTransitions", () => transitionsContract(openTracked));
    describe("delegated calls", () => delegatedContract(openTracked));
    describe("CallRecordReader", () => recordsContract(openTracked));
    describe("LeaseStore", () => leasesContract(openTracked));
    describe("AskOpener and AskStore", () => asksContract(openTracked));
    describe("AskStore.settle", () => settleContract(openTracked));
    describe("GrantStore", () => grantsContract(openTracked));
    describe("AuditLog", () => auditContract(openTracked));
    describe("EventLog", () => logContract(openTracked));
    describe("OutputStore", () => outputContract(openTracked));
    describe("ToolMemory", () => toolMemoryContract(openTracked));
    describe("StoreMembership", () => membershipContract(openTracked));
    describe("Retention", () => retentionContract(openTracked));
    describe("guards", () => guardsContract(openTracked));
  });
}
