import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import * as z from "zod";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openCrashMarks } from "../../src/call/crash-marks.ts";
import { digestOfRequest } from "../../src/call/digests.ts";
import type { OpenCallStep, Store } from "../../src/call/ports.ts";
import type { ConfiguredRules } from "../../src/policy/layers.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { ToolFailure } from "../../src/tool/errors.ts";
import type { ToolContext, ToolResult } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { startReplica } from "./replica.ts";

const noEffects = { readOnly: true, idempotent: true, openWorld: false };
const never = new AbortController().signal;

/** Starts a replica with a built-in tool without effects, and records the steps that its calls take. */
async function start(
  execute: (ctx: ToolContext) => Promise<ToolResult>,
  {
    asks = false,
    hints = noEffects,
    rules,
    openMs = 0,
  }: { asks?: boolean; hints?: typeof noEffects; rules?: ConfiguredRules; openMs?: number } = {},
) {
  const steps: string[] = [];
  const look = defineTool({
    name: "look",
    description: "Has no effects.",
    input: z.object({ at: z.string().optional() }),
    ...hints,
    plan: ({ at = "" }) => ({ title: "look", asks: asks ? [{ permission: "look", patterns: [at] }] : [] }),
    execute: (_, ctx) => execute(ctx),
  });
  const through = ({ calls }: Store) => ({
    async openCall(step: OpenCallStep) {
      if (openMs > 0) await delay(openMs);
      steps.push(step.end ? "open and end" : step.start ? "open and start" : "open");
      return calls.openCall(step);
    },
    finishCall(step: Parameters<typeof calls.finishCall>[0]) {
      steps.push("finish");
      return calls.finishCall(step);
    },
  });
  const replica = await startReplica({ tools: [look], through, ...(rules && { rules }) });
  await replica.sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  const open = (callId = "c1", input = {}) =>
    replica.calls.open(agent, create(CallToolRequestSchema, { sessionId: "ses_a", callId, tool: "look", input }));
  return {
    ...replica,
    steps,
    open,
    /** Makes a call and returns it when it has ended. */
    async end(callId = "c1", input = {}): Promise<ToolPart> {
      const { record } = await open(callId, input);
      return (await replica.calls.wait(record, 10_000, never)).part;
    },
    stored: async (callId = "c1") => (await replica.store.calls.getCall("ses_a", callId))?.part.state.case,
    log: async () => (await replica.store.calls.readLog("ses_a", 0, 1e6)).events,
  };
}

const done = async () => ({ output: "done" });

describe("a call without effects", () => {
  test("is accepted, started and ended in one step, which the log shows as three events", async () => {
    const { end, steps, log, store } = await start(async ({ reads }) => {
      await reads.record("/w/a", "1");
      return { output: "done" };
    });
    const part = await end();
    expect(part).toMatchObject({ revision: 3n, state: { case: "completed", value: { output: "done" } } });
    expect(steps).toEqual(["open and end"]);
    const events = await log();
    expect(events.map(({ seq, event }) => [seq, event.case === "part" && event.value.state.case])).toEqual([
      [1n, "pending"],
      [2n, "running"],
      [3n, "completed"],
    ]);
    expect(await store.calls.getRead("ses_a", "/w/a")).toBe("1");
  });

  test("that fails is recorded with its failure in one step", async () => {
    const { end, steps } = await start(async () => {
      throw new ToolFailure("There is nothing.");
    });
    const part = await end();
    expect(part.state).toMatchObject({ case: "error", value: { error: "There is nothing." } });
    expect(steps).toEqual(["open and end"]);
  });

  test("that takes longer is recorded as running, and its body continues", async () => {
    const seen: unknown[] = [];
    const service = await start(async () => {
      await expect.poll(() => service.stored()).toBe("running");
      seen.push(await service.stored());
      return { output: "done" };
    });
    expect(await service.end()).toMatchObject({ state: { case: "completed" } });
    expect([seen, service.steps]).toEqual([["running"], ["open and start", "finish"]]);
  });

  test.each<[string, (ctx: ToolContext) => unknown]>([
    ["a state", (ctx) => ctx.state.set("todos", [])],
    ["an output of another call", (ctx) => ctx.outputs.store(Buffer.from("x"))],
    ["an ask", (ctx) => ctx.ask({ permission: "look", patterns: ["x"] })],
    ["calls", (ctx) => ctx.calls([], { atomic: false })],
  ])("that writes %s is recorded first", async (_, write) => {
    const service = await start(
      async (ctx) => {
        await write(ctx);
        seen.push(await service.stored());
        return { output: "done" };
      },
      { rules: { config: [{ permission: "look", pattern: "*", action: PermissionAction.ALLOW }], agents: new Map() } },
    );
    const seen: unknown[] = [];
    expect(await service.end()).toMatchObject({ state: { case: "completed" } });
    expect([seen, service.steps]).toEqual([["running"], ["open and start", "finish"]]);
  });

  test.each<[string, (ctx: ToolContext) => ToolResult | Promise<ToolResult>]>([
    [
      "writes output",
      async (ctx) => {
        await ctx.output(Buffer.from("x"));
        return {};
      },
    ],
    ["shows metadata", (ctx) => ctx.metadata({ title: "looking" }) ?? { output: "done" }],
    ["returns more than its part may hold", () => ({ output: "line\n".repeat(30_000) })],
    ["returns a large file", () => ({ output: "", attachments: [{ mime: "x/y", data: Buffer.alloc(100_000) }] })],
  ])("that %s is recorded before this is", async (_, body) => {
    const { end, steps, log } = await start(async (ctx) => await body(ctx));
    expect(await end()).toMatchObject({ state: { case: "completed" } });
    expect(steps).toEqual(["open and start", "finish"]);
    const [first, second] = await log();
    expect([first?.event.value, second?.event.value]).toMatchObject([
      { state: { case: "pending" } },
      { state: { case: "running" } },
    ]);
  });

  test("that shows metadata while the store is slow is recorded before this is", async () => {
    const service = await start(
      async (ctx) => {
        ctx.metadata({ title: "looking" });
        await expect.poll(() => service.stored()).toBe("running");
        return { output: "done" };
      },
      { openMs: 200 },
    );
    expect(await service.end()).toMatchObject({ state: { case: "completed", value: { title: "looking" } } });
  });

  test("whose id is used twice at once is one call", async () => {
    const { end, log } = await start(done);
    const [one, two] = await Promise.all([end(), end()]);
    expect(one).toEqual(two);
    expect(await log()).toHaveLength(3);
  });

  test("can be cancelled before it is recorded", async () => {
    const entered = Promise.withResolvers<void>();
    const service = await start(async ({ signal }) => {
      entered.resolve();
      return await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    });
    const ended = service.end();
    await entered.promise;
    const part = await service.calls.cancel(agent, "ses_a", "c1", "Not now.");
    expect(part.state).toMatchObject({ value: { reason: ToolErrorReason.CANCELLED, error: "Not now." } });
    expect(await ended).toEqual(part);
  });

  test("counts towards the limit of open calls before it is recorded", async () => {
    const stop = Promise.withResolvers<ToolResult>();
    const entered: string[] = [];
    const { open, steps } = await start(({ callId }) => {
      entered.push(callId);
      return stop.promise;
    });
    // None is recorded because its body took long.
    vi.useFakeTimers({ toFake: ["setTimeout"] });
    onTestFinished(() => void vi.useRealTimers());
    // The limit of this replica is 10.
    const refused = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const left = refused.values();
    const ids = Array.from({ length: 12 }, (_, i) => `c${i}`);
    const opened = ids.map((id) => open(id, { at: id }).catch(() => left.next().value?.resolve()));
    await Promise.all(refused.map(({ promise }) => promise));
    expect(entered).toHaveLength(10);
    // These two were recorded first, so the store refused them.
    expect(steps).toHaveLength(2);
    stop.resolve({ output: "done" });
    await Promise.all(opened);
  });

  test("in a session that is closed meanwhile is refused, and leaves no record", async () => {
    const service = await start(async () => {
      await service.store.calls.closeSession("ses_a");
      return { output: "long ".repeat(30_000) };
    });
    await expect(service.end()).rejects.toThrow("closed");
    expect([await service.stored(), await service.log()]).toEqual([undefined, []]);
    expect(await readdir(join(service.directory, "output"), { recursive: true }).catch(() => [])).toEqual([]);
  });
});

describe("its result is discarded", () => {
  test("if rules changed while it ran: the call is judged again", async () => {
    const rules: { config: ConfiguredRules["config"]; agents: ConfiguredRules["agents"] } = {
      config: [{ permission: "look", pattern: "*", action: PermissionAction.ALLOW }],
      agents: new Map(),
    };
    const service = await start(
      async () => {
        rules.config = [{ permission: "look", pattern: "*", action: PermissionAction.DENY }];
        return { output: "done" };
      },
      { asks: true, rules },
    );
    expect((await service.end()).state).toMatchObject({ value: { reason: ToolErrorReason.DENIED } });
    expect(service.steps).toEqual(["open", "finish"]);
  });

  test("if it repeats the calls before it: the call asks", async () => {
    const { end, open, record, steps } = await start(done);
    await end("c0");
    await end("c2");
    await open("c1");
    await expect.poll(async () => (await record()).part.permissionIds).toHaveLength(1);
    expect(steps).toEqual(["open and end", "open and end", "open and end"]);
    expect((await record()).part.state.case).toBe("pending");
  });
});

describe("the start of a call is recorded before its body is entered", () => {
  const isRecorded = async (service: Awaited<ReturnType<typeof start>>) => {
    await service.end();
    return service.steps[0] === "open and start" || service.steps[0] === "open";
  };

  test.each([{ readOnly: false }, { idempotent: false }, { openWorld: true }])(
    "of a tool that may have effects: %o",
    async (hint) => {
      expect(await isRecorded(await start(done, { hints: { ...noEffects, ...hint } }))).toBe(true);
    },
  );

  test("with hooks after it", async () => {
    const service = await start(done);
    service.hooks.add("guard", { "tool.execute.after": () => {} });
    expect(await isRecorded(service)).toBe(true);
  });

  test("of a request during which the process has crashed three times, and only of that one", async () => {
    const service = await start(done);
    const directory = join(service.directory, "crashed");
    const digest = digestOfRequest("look", "{}");
    for (let crashes = 0; crashes < 3; crashes++) {
      expect(openAgain(directory).isSuspect(digest)).toBe(false);
      await crashWhileEntered(directory, digest);
    }
    const marks = openAgain(directory);
    vi.spyOn(service.crashMarks, "isSuspect").mockImplementation(marks.isSuspect);
    await service.end("c1");
    await service.end("c2", { at: "elsewhere" });
    expect(service.steps).toEqual(["open and start", "finish", "open and end"]);
  });
});

/** Opens the marks as the next process does. */
function openAgain(directory: string) {
  const marks = openCrashMarks(directory, "next");
  marks.close();
  return marks;
}

/** Runs a process that is killed while a body runs unrecorded; another body has ended before. */
async function crashWhileEntered(directory: string, digest: string): Promise<void> {
  const marks = join(import.meta.dirname, "../../src/call/crash-marks.ts");
  const script = `
    const { openCrashMarks } = await import(${JSON.stringify(marks)});
    const marks = openCrashMarks(${JSON.stringify(directory)}, "crashing");
    marks.enter("ended")();
    marks.enter(${JSON.stringify(digest)});
    setImmediate(() => process.kill(process.pid, "SIGKILL"));
  `;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  const [, signal] = await once(child, "exit");
  expect(signal).toBe("SIGKILL");
}
