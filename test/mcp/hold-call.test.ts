import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { PermissionRequestSchema, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { holdCall } from "../../src/agents/mcp/hold-call.ts";

test("an ask that is opened while a look waits is reported before the look returns", async () => {
  const part = create(ToolPartSchema, { callId: "c1" });
  const over = new AbortController();
  const asks = [create(PermissionRequestSchema, { id: "per_1" }), create(PermissionRequestSchema, { id: "per_2" })];
  const opened: string[][] = [];
  const open: typeof asks = [];
  const looks: AbortSignal[] = [];
  await holdCall(
    async (waitMs, signal) => {
      // One that waits returns when the call has ended, which this one does not.
      if (waitMs > 0 && signal) {
        looks.push(signal);
        await new Promise(() => undefined);
      }
      return { part, permissions: [...open] };
    },
    {
      holdMs: 3_600_000,
      signal: over.signal,
      async asked() {
        const next = asks.shift();
        if (next === undefined) over.abort();
        else open.push(next);
      },
      report: async (view) => void opened.push(view?.permissions.map(({ id }) => id) ?? []),
    },
  );
  expect(opened).toEqual([[], ["per_1"], ["per_1", "per_2"]]);
  // A look that is of no use any more does not wait on in the service.
  expect(looks.every(({ aborted }) => aborted)).toBe(true);
});

test("an ask that the first look saw is reported once, also if its event comes later", async () => {
  const part = create(ToolPartSchema, { callId: "c1" });
  const over = new AbortController();
  const permissions = [create(PermissionRequestSchema, { id: "per_1" })];
  let reported = 0;
  let events = 0;
  await holdCall(
    async (waitMs, signal) => {
      if (waitMs > 0 && signal) await new Promise(() => undefined);
      return { part, permissions };
    },
    {
      holdMs: 3_600_000,
      signal: over.signal,
      async asked() {
        events += 1;
        if (events > 1) over.abort();
      },
      async report() {
        reported += 1;
      },
    },
  );
  expect(events).toBeGreaterThan(1);
  expect(reported).toBe(1);
});
