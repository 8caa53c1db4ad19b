import { create } from "@bufbuild/protobuf";
import { afterEach, expect, test, vi } from "vitest";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type WorkRequest, WorkRequestSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { serveWorker } from "../../../src/bodies/workers/connections.ts";

afterEach(() => void vi.useRealTimers());

const beatMs = 1_000;

/** Serves a connection on which a test sends; resolves with the error that ends it. */
function openLink() {
  vi.useFakeTimers();
  const sent: WorkRequest[] = [];
  let wake = () => {};
  async function* requests() {
    for (;;) {
      for (let next = sent.shift(); next; next = sent.shift()) yield next;
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }
  const peer = { greet: async () => () => {}, left: () => {} };
  const read = async () => {
    for await (const _ of serveWorker(requests(), peer, beatMs, new AbortController().signal));
  };
  const ended = read().catch((error: unknown) => error);
  let isOver = false;
  void ended.then(() => {
    isOver = true;
  });
  return {
    ended,
    isOver: () => isOver,
    send(message: Parameters<typeof create<typeof WorkRequestSchema>>[1]) {
      sent.push(create(WorkRequestSchema, message));
      wake();
    },
  };
}

const tool = { name: "ci_echo", description: "Echoes.", inputSchema: { type: "object" } };
const hello = {
  protocol: 1,
  instanceId: "wrk_0123456789abcdef",
  connection: 1n,
  worker: "ci",
  capacity: 1,
  tools: [tool],
};

test("a worker that sends no hello for ten seconds ends with WORKER_SILENT", async () => {
  const link = openLink();
  await vi.advanceTimersByTimeAsync(9_999);
  expect(link.isOver()).toBe(false);
  await vi.advanceTimersByTimeAsync(1);
  expect(await link.ended).toMatchObject({ reason: ErrorReason.WORKER_SILENT });
});

test("a worker that sends nothing for three beats ends so, too; a beat in time keeps the connection", async () => {
  const link = openLink();
  link.send({ message: { case: "hello", value: hello } });
  await vi.advanceTimersByTimeAsync(3 * beatMs - 1);
  link.send({ message: { case: "beat", value: {} } });
  await vi.advanceTimersByTimeAsync(3 * beatMs - 1);
  expect(link.isOver()).toBe(false);
  await vi.advanceTimersByTimeAsync(1);
  expect(await link.ended).toMatchObject({ reason: ErrorReason.WORKER_SILENT });
});
