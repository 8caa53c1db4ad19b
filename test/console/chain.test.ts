import { clone } from "@bufbuild/protobuf";
import fc from "fast-check";
import { beforeAll, expect, test } from "vitest";
import { type AuditEntry, AuditEntrySchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { checkChain } from "../../src/console/policy/chain.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";

const service = useService();
const entries: AuditEntry[] = [];

beforeAll(async () => {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  for (const text of ["one", "two", "three", "four"]) {
    await tools.callTool({ sessionId, agent: "free", tool: "echo", input: { text } });
  }
  const { permissions } = connect(service, "approver");
  entries.push(...(await permissions.listDecisions({ sessionId })).entries);
});

test("the service's records verify as a chain, in one page or two", async () => {
  const whole = { state: "whole", seq: 4n, hash: entries[3]?.hash };
  expect(await checkChain(entries)).toEqual(whole);
  expect(await checkChain(entries.slice(2), entries[1])).toEqual(whole);
});

test("a missing or moved record breaks the chain at its position", async () => {
  expect(await checkChain(entries.toSpliced(1, 1))).toMatchObject({ state: "broken", seq: 3n });
  expect(await checkChain(entries.slice(2), entries[0])).toMatchObject({ state: "broken", seq: 3n });
  expect(await checkChain(entries.toReversed())).toMatchObject({ state: "broken" });
});

test("any change of a record breaks the chain at this record", async () => {
  const changes: readonly ((entry: AuditEntry, by: number) => void)[] = [
    (entry, by) => {
      const at = by % entry.content.length;
      entry.content[at] = (entry.content[at] ?? 0) ^ (1 + (by % 255));
    },
    (entry, by) => {
      entry.time += 1 + by;
    },
    (entry) => {
      entry.hash = entry.hash.replace(/^./, (first) => (first === "0" ? "1" : "0"));
    },
  ];
  await fc.assert(
    fc.asyncProperty(fc.nat(3), fc.nat(), fc.constantFrom(...changes), async (place, by, change) => {
      const changed = entries.map((entry) => clone(AuditEntrySchema, entry));
      for (const entry of changed.slice(place, place + 1)) change(entry, by);
      expect(await checkChain(changed)).toMatchObject({ state: "broken", seq: BigInt(place + 1) });
    }),
  );
});
