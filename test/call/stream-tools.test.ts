import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  OnDisconnect,
  type StreamToolsOpenSchema,
  type StreamToolsRequestSchema,
  type StreamToolsResponse,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { serve } from "./server.ts";

type Request = MessageInitShape<typeof StreamToolsRequestSchema>;
type Message = NonNullable<Request["message"]>;
type Service = Awaited<ReturnType<typeof serve>>;

const sessionId = "ses_stream";

/** Returns its text as it is. */
const say = defineTool({
  name: "say",
  description: "Says a text.",
  input: z.object({ text: z.string() }),
  plan: () => ({ title: "say", asks: [] }),
  execute: ({ text }) => ({ output: text }),
});

/** Outputs as many bytes as its input says. */
const flood = defineTool({
  name: "flood",
  description: "Outputs bytes.",
  input: z.object({ bytes: z.number() }),
  plan: () => ({ title: "flood", asks: [] }),
  async execute({ bytes }, ctx) {
    for (let made = 0; made < bytes; made += 65_536) await ctx.output(Buffer.alloc(65_536, "x"));
    return { output: "flooded" };
  },
});

/** Waits until it is cancelled. */
const wait = defineTool({
  name: "wait",
  description: "Waits.",
  input: z.object({}),
  plan: () => ({ title: "wait", asks: [] }),
  execute: (_input, ctx) =>
    new Promise((_resolve, reject) => ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason))),
});

test("a call's input shows while it arrives, and its events follow up to one end", async () => {
  const service = await start();
  const stream = openStream(service);
  stream.send("a", open("say"));
  stream.send("a", delta('{"text": "he'));
  await stream.until("a", ({ raw }) => raw === '{"text": "he');
  // Nothing is recorded before the input is complete.
  expect((await service.agent.tools.listToolParts({ sessionId })).parts).toEqual([]);
  stream.send("a", delta('llo"}'), { case: "execute", value: {} });
  await stream.until("a", ({ ended }) => ended === 1);
  expect(stream.of("a")).toMatchObject({ raw: "", output: "hello", errors: [], ended: 1 });
  const [part] = (await service.agent.tools.listToolParts({ sessionId })).parts;
  expect(part?.state).toMatchObject({ case: "completed", value: { input: { text: "hello" } } });
});

test("messages out of order are refused by name, and change nothing", async () => {
  const stream = openStream(await start());
  stream.send("unknown", delta("x"));
  stream.send("nothing", { case: "execute", value: {} });
  stream.send("a", open("say"), delta('{"text": "a"}'));
  stream.send("a", open("flood"));
  stream.send("a", { case: "execute", value: {} });
  stream.send("a", delta("more"), { case: "execute", value: {} }, { case: "resume", value: { afterSeq: 0n } });
  stream.send("gone", { case: "cancel", value: {} }, { case: "credit", value: { bytes: 5 } });
  await stream.until("a", ({ ended }) => ended === 1);
  const refused = { code: Code.InvalidArgument, reason: ErrorReason.INVALID_MESSAGE, metadata: { field: "stream_id" } };
  expect(stream.of("unknown")).toMatchObject({ errors: [refused], ended: 0 });
  expect(stream.of("nothing")).toMatchObject({ errors: [refused], ended: 0 });
  expect(stream.of("a")).toMatchObject({ output: "a", errors: [refused, refused, refused, refused], ended: 1 });
  expect(stream.of("gone")).toMatchObject({ errors: [], ended: 0 });
  stream.end();
  expect(await stream.closed).toBeUndefined();
});

test("an input that cannot be one ends its call with the reason, and the stream goes on", async () => {
  const service = await start();
  const stream = openStream(service);
  const inputs = {
    "no JSON": ['{"text": ', "no JSON object"],
    "a list": ["[]", "no JSON object"],
    "a number that JSON cannot hold": ['{"text": 1e400}', "text is a number"],
    "too many levels": [`${'{"a":'.repeat(5_000)}1${"}".repeat(5_000)}`, "no JSON object"],
    "over the limit": [`"${"x".repeat(524_288)}"`, "over the limit of 524288 bytes"],
  } as const;
  for (const [index, [text, fact]] of Object.values(inputs).entries()) {
    const id = `bad${index}`;
    stream.send(id, open("say"));
    for (let from = 0; from < text.length; from += 65_536) stream.send(id, delta(text.slice(from, from + 65_536)));
    stream.send(id, { case: "execute", value: {} });
    await stream.until(id, ({ ended }) => ended === 1);
    const [error] = stream.of(id).errors;
    expect(error).toMatchObject({ reason: ErrorReason.INVALID_MESSAGE, message: expect.stringContaining(fact) });
  }
  await stream.call("good", "say", { text: "fine" });
  expect(stream.of("good").output).toBe("fine");
  expect((await service.agent.tools.listToolParts({ sessionId })).parts).toHaveLength(1);
});

test("a call that is not read waits for credit while others go on, and loses nothing", async () => {
  const service = await start();
  const stream = openStream(service);
  await stream.call("other", "say", { text: "before" });
  stream.send("slow", open("flood"), delta('{"bytes": 2097152}'), { case: "execute", value: {} });
  await stream.until("slow", ({ unread }) => unread >= 262_144);
  // The call itself does not wait for its reader.
  const request = { sessionId, callId: "slow", tool: "flood", input: { bytes: 2_097_152 } };
  expect((await service.agent.tools.callTool(request)).part?.state.case).toBe("completed");
  for (let count = 0; count < 5; count += 1) await stream.call(`other${count}`, "say", { text: `${count}` });
  expect(stream.of("slow").unread).toBeLessThan(262_144 + 131_072);
  expect(stream.of("slow").ended).toBe(0);
  while (stream.of("slow").ended === 0) {
    const { unread } = stream.of("slow");
    if (unread > 0) stream.credit("slow", unread);
    await stream.until("slow", ({ unread, ended }) => unread > 0 || ended > 0);
  }
  expect(stream.of("slow").data).toBe(2_097_152);
});

test("a stream has 1,000 open calls; one more is refused, and there is a place when one has ended", async () => {
  const stream = openStream(await start());
  for (let count = 0; count < 1_000; count += 1) stream.send(`c${count}`, open("say"), delta("{"));
  stream.send("more", open("say"));
  await stream.until("more", ({ ended }) => ended === 1);
  expect(stream.of("more").errors).toMatchObject([{ code: Code.ResourceExhausted, reason: ErrorReason.OVERLOADED }]);
  stream.send("c7", { case: "cancel", value: {} });
  await stream.until("c7", ({ ended }) => ended === 1);
  await stream.call("again", "say", { text: "fits" });
  expect(stream.of("again").output).toBe("fits");
  stream.end();
  expect(await stream.closed).toBeUndefined();
  expect(stream.of("c8")).toMatchObject({ errors: [], ended: 1 });
});

const pad = (length: number) => ({ metadata: { text: "x".repeat(length) } });

test.each<[string, (fields: object) => Message[]]>([
  ["opens more calls than it may have", (fields) => [open("say", fields)]],
  ["opens and drops more calls than it may have", (fields) => [open("say", fields), { case: "cancel", value: {} }]],
])("a client that reads nothing and %s is not read either", async (_, messagesOf) => {
  const { agent } = await start();
  const maxCount = 8_000;
  let sentCount = 0;
  async function* requests(): AsyncGenerator<Request> {
    for (; sentCount < maxCount; sentCount += 1) {
      // The end of a call repeats its id.
      const streamId = `c${sentCount}`.padEnd(64, "-");
      for (const message of messagesOf({ callId: "c", ...pad(500) })) yield { streamId, message };
    }
  }
  const leave = new AbortController();
  onTestFinished(() => leave.abort());
  await agent.tools.streamTools(requests(), { signal: leave.signal })[Symbol.asyncIterator]().next();
  // What can be sent was sent when nothing was for 20 requests on the connection, one after the other.
  for (let same = 0, last = 0; same < 20; same = sentCount === last ? same + 1 : 0) {
    last = sentCount;
    await agent.tools.getServerInfo({});
  }
  expect(sentCount).toBeLessThan(6_000);
});

test("metadata has to fit at the open of a call, and takes memory until the call ends", async () => {
  const service = await start("[limits]\nbuffered_bytes = 4194304\n");
  const stream = openStream(service);
  stream.send("large", open("say", pad(65_536)));
  await stream.until("large", ({ ended }) => ended === 1);
  const tooLarge = { reason: ErrorReason.INVALID_MESSAGE, metadata: { field: "metadata" } };
  expect(stream.of("large").errors).toMatchObject([tooLarge]);
  for (let count = 0; count < 70; count += 1) stream.send(`c${count}`, open("say", pad(64_000)));
  // The open that does not fit is refused; if not even its message can be read, the stream ends.
  const refused = stream.until("c69", ({ ended }) => ended === 1).then(() => stream.of("c69").errors[0]);
  expect(await Promise.race([stream.closed, refused])).toMatchObject({ code: Code.ResourceExhausted });
  stream.end();
  await stream.closed;
  const next = openStream(service);
  next.send("again", open("say", pad(64_000)), delta('{"text": "fits"}'), { case: "execute", value: {} });
  await next.until("again", ({ ended }) => ended === 1);
  expect(next.of("again")).toMatchObject({ output: "fits", errors: [] });
});

test("inputs that a principal leaves open take its share of the memory, and not that of others", async () => {
  const service = await start("[limits]\nbuffered_bytes = 1048576\nrequest_bytes = 131072\ninput_bytes = 131072\n");
  const full = openStream(service);
  for (const id of ["c0", "c1"]) full.send(id, open("say"), delta("x".repeat(130_000)));
  full.send("more", open("say"), delta("x".repeat(130_000)));
  await full.until("more", ({ ended }) => ended === 1);
  expect(full.of("more").errors).toMatchObject([{ code: Code.ResourceExhausted, reason: ErrorReason.OVERLOADED }]);
  const other = openStream({ agent: service.stranger });
  for (const id of ["c0", "c1"]) other.send(id, open("say"), delta("x".repeat(130_000)));
  other.send("more", open("say"), delta("x".repeat(130_000)));
  await other.until("more", ({ ended }) => ended === 1);
  expect([other.of("c0").errors, other.of("c1").errors, full.of("c0").errors]).toEqual([[], [], []]);
  full.send("c0", { case: "cancel", value: {} });
  await full.until("c0", ({ ended }) => ended === 1);
  await full.call("again", "say", { text: "x".repeat(100_000) });
  expect(full.of("again").errors).toEqual([]);
});

test("a cut stream cancels the calls that want it, drops those without execute, and the others are resumed", async () => {
  const service = await start();
  const cut = openStream(service);
  for (const [id, onDisconnect] of [
    ["detached", OnDisconnect.DETACH],
    ["cancelled", OnDisconnect.CANCEL],
  ] as const)
    cut.send(id, open("wait", { callId: id, onDisconnect }), { case: "execute", value: {} });
  cut.send("unfinished", open("say", { callId: "unfinished" }), delta("{"));
  await cut.until("unfinished", ({ raw }) => raw === "{");
  for (const id of ["detached", "cancelled"]) await cut.until(id, ({ running }) => running);
  cut.cut();
  const request = { sessionId, callId: "cancelled", tool: "wait", input: {} };
  expect((await service.agent.tools.callTool(request)).part?.state).toMatchObject({ case: "error" });

  const next = openStream(service);
  const { lastSeq } = cut.of("detached");
  for (const callId of ["detached", "unfinished"])
    next.send(callId, open("say", { callId }), { case: "resume", value: { afterSeq: lastSeq } });
  await next.until("unfinished", ({ ended }) => ended === 1);
  expect(next.of("unfinished").errors).toMatchObject([{ code: Code.NotFound, reason: ErrorReason.NO_SUCH_CALL }]);
  next.send("detached", { case: "cancel", value: { message: "enough" } });
  await next.until("detached", ({ ended }) => ended === 1);
  expect(next.of("detached")).toMatchObject({ error: expect.stringContaining("enough"), errors: [], running: false });
});

test("a drain ends a stream with DRAINING and cancels none of its calls", async () => {
  const service = await start();
  const stream = openStream(service);
  stream.send("c1", open("wait", { callId: "c1", onDisconnect: OnDisconnect.CANCEL }), { case: "execute", value: {} });
  await stream.until("c1", ({ running }) => running);
  await service.close();
  expect(await stream.closed).toMatchObject({ code: Code.Unavailable });
  expect(stream.of("c1").error).not.toContain("disconnected");
});

async function start(toml = ""): Promise<Service> {
  const service = await serve([say, flood, wait], { toml });
  await service.agent.sessions.createSession({ sessionId });
  return service;
}

const open = (tool: string, fields: Partial<MessageInitShape<typeof StreamToolsOpenSchema>> = {}): Message => ({
  case: "open",
  value: { sessionId, tool, ...fields } as MessageInitShape<typeof StreamToolsOpenSchema>,
});
const delta = (text: string): Message => ({ case: "inputDelta", value: { text } });

/** Messages of a stream about one call. */
interface Seen {
  raw: string | undefined;
  output: string | undefined;
  error: string;
  running: boolean;
  data: number;
  /** Window bytes of events for which no credit was sent. */
  unread: number;
  lastSeq: bigint;
  errors: object[];
  ended: number;
}

/** Opens a stream as the caller; a call whose `callId` is not given has that of its stream id. */
function openStream({ agent }: Pick<Service, "agent">) {
  const leave = new AbortController();
  onTestFinished(() => leave.abort());
  const queue: Request[] = [];
  let isEnded = false;
  let wake = () => {};
  let news = Promise.withResolvers<void>();
  const seen = new Map<string, Seen>();
  const of = (id: string): Seen => {
    const one = seen.get(id) ?? { ...nothing, errors: [] };
    seen.set(id, one);
    return one;
  };
  async function* requests() {
    for (;;) {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) yield next;
      if (isEnded) return;
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }
  const read = async () => {
    for await (const response of agent.tools.streamTools(requests(), { signal: leave.signal })) {
      note(of(response.streamId), response);
      news.resolve();
      news = Promise.withResolvers<void>();
    }
  };
  const closed = read().then(
    () => undefined,
    (error: unknown) => error,
  );
  const send = (streamId: string, ...messages: Message[]) => {
    for (const message of messages) {
      const isNamed = message.case === "open" && !message.value.callId;
      queue.push({
        streamId,
        message: isNamed ? { case: "open", value: { ...message.value, callId: streamId } } : message,
      });
    }
    wake();
  };
  const until = async (id: string, isReached: (seen: Seen) => boolean) => {
    while (!isReached(of(id))) await Promise.race([news.promise, closed.then(failClosed)]);
  };
  return {
    ...{ send, of, until, closed },
    credit(id: string, bytes: number) {
      of(id).unread -= bytes;
      send(id, { case: "credit", value: { bytes } });
    },
    async call(id: string, tool: string, input: object) {
      send(id, open(tool), delta(JSON.stringify(input)), { case: "execute", value: {} });
      await until(id, ({ ended }) => ended === 1);
    },
    end() {
      isEnded = true;
      wake();
    },
    cut: () => leave.abort(),
  };
}

const nothing: Seen = {
  ...{ raw: undefined, output: undefined, error: "", running: false, data: 0, unread: 0, lastSeq: 0n, ended: 0 },
  errors: [],
};

function note(seen: Seen, { message, windowBytes }: StreamToolsResponse): void {
  seen.unread += windowBytes;
  if (message.case === "ended") seen.ended += 1;
  if (message.case === "error") seen.errors.push(message.value);
  if (message.case !== "event") return;
  if (message.value.lastSeq > seen.lastSeq) seen.lastSeq = message.value.lastSeq;
  const event = message.value.event?.event;
  if (event?.case === "output") seen.data += event.value.data.length;
  if (event?.case !== "part") return;
  const { state } = event.value;
  seen.running = state.case === "running";
  if (state.case === "pending") seen.raw = state.value.raw;
  if (state.case === "completed") seen.output = state.value.output;
  if (state.case === "error") seen.error = state.value.error;
}

function failClosed(error: unknown): never {
  throw error ?? new Error("the stream ended");
}
