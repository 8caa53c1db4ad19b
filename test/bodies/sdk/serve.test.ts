import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { WorkerFailure, type WorkerReport } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import {
  defineTool,
  type ServeOptions,
  serve,
  type ToolContext,
  type ToolResult,
  z,
} from "../../../src/bodies/sdk/worker.ts";
import { type FakeService, startFakeService, type WorkerLine } from "./fake-service.ts";

let service: FakeService;
beforeAll(async () => {
  service = await startFakeService();
});
afterAll(() => service.close());

type Body = (ctx: ToolContext, service: string) => Promise<string | ToolResult> | string | ToolResult;

/** Serves one tool, `deploy`, whose body is the test's; returns what drains the worker, and its entered bodies. */
function serveBody(body: Body, options: ServeOptions = {}) {
  const drain = new AbortController();
  const entered: string[] = [];
  const deploy = defineTool({
    name: "deploy",
    description: "Deploys a service.",
    input: z.object({ env: z.string(), service: z.string() }),
    permissions: [{ patterns: ["{env}/{service}"], always: ["{env}/*"] }],
    async execute(input, ctx) {
      entered.push(input.service);
      const result = await body(ctx, input.service);
      return typeof result === "string" ? { output: result } : result;
    },
  });
  const served = serve([deploy], {
    ...{ url: service.url, token: "t", worker: "ci", log: () => undefined, signal: drain.signal },
    ...options,
  });
  onTestFinished(() => drain.abort());
  return { entered, served, drain: () => drain.abort() };
}

const call = { sessionId: "ses_1", callId: "c1", tool: "deploy", agent: "build", workspace: "default" };
const start = (line: WorkerLine, assignment: string, name = "shop") =>
  line.send({
    case: "start",
    value: { assignment, attempt: 1, call: { ...call, input: { env: "dev", service: name } } },
  });

const ended = (line: WorkerLine, assignment: string) =>
  line.send({ case: "ended", value: { assignment, recorded: true } });

/** Waits for the next report of a kind. */
async function report<C extends WorkerReport["report"]["case"]>(line: WorkerLine, name: C) {
  for (;;) {
    const { assignment, report } = await line.next("report");
    if (report.case === name) return { assignment, value: report.value as never as Record<string, never> };
  }
}

const bytesOf = (text: string) => new TextEncoder().encode(text);
const outputOf = (value: unknown) => (value as { outcome: { value: { output?: string } } }).outcome.value.output;

test("a tool is declared with its templates, and a body's result is reported", async () => {
  const { drain, served } = serveBody(async (ctx, name) => {
    ctx.metadata({ title: `to ${name}` });
    await ctx.output(Buffer.from("rolling\n"));
    return `did ${name}`;
  });
  const line = await service.accept();
  expect(line.hello).toMatchObject({
    ...{ protocol: 1, worker: "ci", connection: 1n, held: [], expectedStoreId: "" },
    instanceId: expect.stringMatching(/^wrk_[\w-]{22}$/),
    tools: [{ name: "deploy", plans: false, permissions: [{ permission: "deploy", patterns: ["{env}/{service}"] }] }],
  });
  start(line, "a1");
  expect(await report(line, "progress")).toMatchObject({ assignment: "a1", value: { title: "to shop" } });
  expect(await report(line, "output")).toMatchObject({ value: { offset: 0n, data: bytesOf("rolling\n") } });
  expect(outputOf((await report(line, "result")).value)).toBe("did shop");
  ended(line, "a1");
  drain();
  await line.next("capacity");
  line.send({ case: "leave", value: { stop: true } });
  await served;
});

test("after a lost connection it sends again what has no receipt, and enters no assignment twice", async () => {
  const go = Promise.withResolvers<void>();
  const { entered } = serveBody(async (ctx) => {
    ctx.metadata({ title: "first" });
    ctx.metadata({ metadata: { step: 2 } });
    await ctx.output(Buffer.from("one,"));
    await ctx.output(Buffer.from("two,"));
    await go.promise;
    await ctx.output(Buffer.from("three"));
    return "done";
  });
  const first = await service.accept();
  start(first, "a1");
  await report(first, "output");
  await report(first, "output");
  first.send({ case: "receipt", value: { assignment: "a1", stored: { 0: 4n } } });
  start(first, "a1");
  first.send({ case: "probe", value: "a1" });
  expect(await first.next("known")).toMatchObject({ entered: true });
  first.cut();
  go.resolve();
  const second = await service.accept();
  expect(second.hello).toMatchObject({ connection: 2n, held: ["a1"], expectedStoreId: "store_1" });
  expect(second.hello.instanceId).toBe(first.hello.instanceId);
  start(second, "a1");
  expect((await report(second, "progress")).value).toMatchObject({ title: "first", metadata: { step: 2 } });
  expect((await report(second, "output")).value).toMatchObject({ offset: 4n, data: bytesOf("two,") });
  expect((await report(second, "output")).value).toMatchObject({ offset: 8n, data: bytesOf("three") });
  await report(second, "result");
  second.cut();
  const third = await service.accept();
  expect(third.hello.held).toEqual(["a1"]);
  await report(third, "result");
  ended(third, "a1");
  third.cut();
  expect((await service.accept()).hello.held).toEqual([]);
  expect(entered).toEqual(["shop"]);
});

test("an assignment that a probe found not entered is never entered", async () => {
  const { entered } = serveBody(() => "done");
  const line = await service.accept();
  line.send({ case: "probe", value: "late" });
  expect(await line.next("known")).toMatchObject({ assignment: "late", entered: false });
  start(line, "late", "late");
  start(line, "a2", "next");
  await report(line, "result");
  expect(entered).toEqual(["next"]);
});

test("a body whose messages are too large for the service fails alone", async () => {
  const large = { a: "x".repeat(1_000_000) };
  serveBody(async (ctx, name) => {
    if (name === "progress") ctx.metadata({ title: "é".repeat(2_000), metadata: large });
    if (name === "state") await ctx.state.set("a", large);
    if (name === "calls") await ctx.calls([{ tool: "deploy", input: large }], { atomic: false });
    if (name === "result") return { output: "", metadata: large };
    ctx.metadata({ title: "é".repeat(2_000) });
    return "done";
  });
  const line = await service.accept();
  for (const name of ["progress", "state", "calls", "result"]) {
    start(line, name, name);
    expect((await report(line, "result")).value).toMatchObject({
      outcome: {
        value: { kind: WorkerFailure.EXPECTED, message: expect.stringContaining("at most 1000000 are allowed") },
      },
    });
  }
  start(line, "fine");
  expect((await report(line, "progress")).value).toMatchObject({ title: "é".repeat(1_024) });
  expect(outputOf((await report(line, "result")).value)).toBe("done");
});

test("a start on a connection that was left is not read", async () => {
  const { entered } = serveBody(() => "done");
  const first = await service.accept();
  first.send({ case: "leave", value: { stop: false, withinMs: 1_000 } });
  start(first, "a1", "old");
  const second = await service.accept();
  expect(second.hello).toMatchObject({ connection: 2n, held: [] });
  start(second, "a2", "new");
  await report(second, "result");
  expect(entered).toEqual(["new"]);
});

test("a body that has written the window waits for a receipt, also across connections", async () => {
  const written: number[] = [];
  serveBody(async (ctx) => {
    for (let i = 0; i < 3; i++) {
      await ctx.output(Buffer.alloc(100));
      written.push(i);
    }
    return "done";
  });
  const first = await service.accept({ windowBytes: 150 });
  start(first, "a1");
  await report(first, "output");
  await report(first, "output");
  first.send({ case: "probe", value: "a1" });
  await first.next("known");
  expect(written).toEqual([0]);
  first.cut();
  const second = await service.accept({ windowBytes: 150 });
  second.send({ case: "receipt", value: { assignment: "a1", stored: { 0: 200n } } });
  await report(second, "result");
  expect(written).toEqual([0, 1, 2]);
});

test("attachments do not count for the window, and are sent again until the end is recorded", async () => {
  serveBody(() => ({
    output: "done",
    attachments: [{ mime: "text/plain", data: Buffer.alloc(400), filename: "a.txt" }],
  }));
  const first = await service.accept({ windowBytes: 150 });
  start(first, "a1");
  expect((await report(first, "output")).value).toMatchObject({ blob: 1, offset: 0n });
  await report(first, "result");
  first.send({ case: "receipt", value: { assignment: "a1", stored: { 0: 400n } } });
  first.cut();
  const second = await service.accept({ windowBytes: 150 });
  expect(second.hello.held).toEqual(["a1"]);
  const again = await report(second, "output");
  expect(again.value).toMatchObject({ blob: 1, offset: 0n });
  expect(again.value.data).toHaveLength(400);
  const result = await report(second, "result");
  expect(result.value).toMatchObject({ outcome: { value: { attachments: [{ blob: 1, filename: "a.txt" }] } } });
});

test("an ask in a body waits for its answer, which may come on a later connection", async () => {
  serveBody(async (ctx) => {
    await ctx.ask({ permission: "deploy_traffic", patterns: ["prod"] });
    return "allowed";
  });
  const first = await service.accept();
  start(first, "a1");
  expect((await report(first, "request")).value).toMatchObject({ number: 1 });
  first.cut();
  const second = await service.accept();
  expect((await report(second, "request")).value).toMatchObject({ number: 1 });
  second.send({ case: "answer", value: { assignment: "a1", number: 1 } });
  expect(outputOf((await report(second, "result")).value)).toBe("allowed");
});

test("cancel aborts the signal of a body, and one that goes on is reported as stopped within its grace", async () => {
  const causes: unknown[] = [];
  serveBody((ctx, name) => {
    const { promise, reject } = Promise.withResolvers<string>();
    ctx.signal.addEventListener("abort", () => {
      causes.push(ctx.signal.reason.message);
      if (name === "heeds") reject(new Error("cleaned up"));
    });
    return promise;
  });
  const line = await service.accept();
  for (const [assignment, name] of [
    ["a1", "heeds"],
    ["a2", "ignores"],
  ] as const) {
    start(line, assignment, name);
    line.send({ case: "cancel", value: { assignment, message: "enough", graceMs: 20 } });
    expect((await report(line, "result")).value).toMatchObject({
      outcome: { case: "failed", value: { kind: WorkerFailure.STOPPED } },
    });
    ended(line, assignment);
  }
  expect(causes).toEqual(["enough", "enough"]);
});

test("bodies stop when the service is away for resume_ms, and stay held until their end is known", async () => {
  const stopped = Promise.withResolvers<void>();
  const { entered } = serveBody((ctx) => {
    ctx.signal.addEventListener("abort", () => stopped.resolve());
    return new Promise<string>((_, reject) => ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason)));
  });
  const first = await service.accept({ resumeMs: 1 });
  start(first, "a1");
  first.send({ case: "probe", value: "a1" });
  await first.next("known");
  first.cut();
  await stopped.promise;
  const second = await service.accept();
  expect(second.hello.held).toEqual(["a1"]);
  expect(entered).toEqual(["shop"]);
});

test("with another store it stops its bodies and connects without them", async () => {
  const stopped = Promise.withResolvers<void>();
  serveBody((ctx) => {
    ctx.signal.addEventListener("abort", () => stopped.resolve());
    return new Promise<string>(() => undefined);
  });
  const first = await service.accept();
  start(first, "a1");
  first.send({ case: "probe", value: "a1" });
  await first.next("known");
  first.cut();
  await service.accept({ refusal: "STORE_CHANGED" });
  await stopped.promise;
  expect((await service.accept()).hello).toMatchObject({ held: [], expectedStoreId: "", connection: 3n });
});

test("a silent service is left, and connected to again", async () => {
  serveBody(() => "done");
  await service.accept({ silenceMs: 40 });
  expect((await service.accept()).hello.connection).toBe(2n);
});

test("a worker that drains finishes its bodies, refuses new ones, and leaves when all ends are recorded", async () => {
  const go = Promise.withResolvers<string>();
  const { entered, drain, served } = serveBody(() => go.promise);
  const line = await service.accept();
  start(line, "a1");
  line.send({ case: "probe", value: "a1" });
  await line.next("known");
  drain();
  expect(await line.next("capacity")).toMatchObject({ draining: true });
  start(line, "a2", "late");
  expect((await report(line, "result")).value).toMatchObject({ outcome: { case: "notEntered" } });
  ended(line, "a2");
  go.resolve("done");
  await report(line, "result");
  line.cut();
  const next = await service.accept();
  expect(next.hello.held).toEqual(["a1"]);
  await next.next("capacity");
  await report(next, "result");
  ended(next, "a1");
  // A start may be under way until the service has confirmed that none is.
  start(next, "a3", "later");
  expect((await report(next, "result")).value).toMatchObject({ outcome: { case: "notEntered" } });
  ended(next, "a3");
  next.send({ case: "leave", value: { stop: true } });
  await served;
  expect(entered).toEqual(["shop"]);
});

test("the first connection may be refused, later ones are tried again", async () => {
  const { served } = serveBody(() => "done");
  const refused = expect(served).rejects.toThrow("refused");
  await service.accept({ refusal: "WORKER_PROTOCOL" });
  await refused;
  serveBody(() => "done");
  (await service.accept()).cut();
  await service.accept({ refusal: "WORKER_PROTOCOL" });
  expect((await service.accept()).hello.connection).toBe(3n);
});

test("a worker whose instance ID another process has stops its bodies and ends with an error that says so", async () => {
  const stopped = Promise.withResolvers<void>();
  const { served } = serveBody(async (ctx) => {
    ctx.signal.addEventListener("abort", () => stopped.resolve());
    await stopped.promise;
    return "done";
  });
  const line = await service.accept();
  start(line, "a1");
  line.cut();
  const ended = expect(served).rejects.toThrow(/\[WORKER_SUPERSEDED\]; next: start each process from its program/);
  await service.accept({ refusal: "WORKER_SUPERSEDED" });
  await ended;
  await stopped.promise;
});

test("a body may reuse its buffer while what it wrote has no receipt", async () => {
  const written = Promise.withResolvers<void>();
  const { drain } = serveBody(async (ctx) => {
    const buffer = Buffer.from("first");
    await ctx.output(buffer);
    buffer.write("other");
    written.resolve();
    return "done";
  });
  const line = await service.accept();
  start(line, "a1");
  await written.promise;
  line.cut();
  // All of it is sent again.
  const again = await service.accept();
  expect((await report(again, "output")).value.data).toEqual(bytesOf("first"));
  ended(again, "a1");
  drain();
});

test("a worker without a token names the command that creates one", async () => {
  vi.stubEnv("TOOLGATE_TOKEN", "");
  onTestFinished(() => void vi.unstubAllEnvs());
  const greet = defineTool({
    ...{ name: "greet", description: "Greets.", input: z.object({}) },
    execute: () => ({ output: "" }),
  });
  await expect(serve([greet])).rejects.toThrow("`toolgate token create --role worker --tool greet`");
});

test("a tool that needs the service is refused when the worker starts", async () => {
  const offered = defineTool({
    ...{ name: "offered", description: "Offers.", input: z.object({}), offer: async () => "more" },
    execute: () => ({ output: "" }),
  });
  await expect(serve([offered])).rejects.toThrow("offered cannot run in a worker");
});
