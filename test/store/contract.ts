import { afterEach, describe } from "vitest";
import { asksContract } from "./contract/asks.ts";
import { auditContract } from "./contract/audit.ts";
import { callsContract } from "./contract/calls.ts";
import { grantsContract } from "./contract/grants.ts";
import { leasesContract } from "./contract/leases.ts";
import { logContract } from "./contract/log.ts";
import { outputsContract } from "./contract/outputs.ts";
import { sessionsContract } from "./contract/sessions.ts";
import { settleContract } from "./contract/settle.ts";
import { sweepContract } from "./contract/sweep.ts";
import type { OpenedStore, OpenStore } from "./fixture.ts";

/** What every store promises, whatever it is made of. */
export function storeContract(name: string, open: OpenStore): void {
  const opened: OpenedStore[] = [];
  const remembered: OpenStore = async (options) => {
    const store = await open(options);
    opened.push(store);
    return store;
  };

  describe(`store: ${name}`, () => {
    afterEach(async () => {
      for (const store of opened.splice(0)) await store.close();
    });
    describe("sessions", () => sessionsContract(remembered));
    describe("calls", () => callsContract(remembered));
    describe("leases", () => leasesContract(remembered));
    describe("asks", () => asksContract(remembered));
    describe("audit", () => auditContract(remembered));
    describe("settling", () => settleContract(remembered));
    describe("grants", () => grantsContract(remembered));
    describe("log", () => logContract(remembered));
    describe("outputs", () => outputsContract(remembered));
    describe("sweep", () => sweepContract(remembered));
  });
}
