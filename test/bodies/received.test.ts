import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { WorkerBodyRequestSchema, WorkerOutputSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { answerBody, type BodyKind, type HostedBody, receiveBytes } from "../../src/bodies/host.ts";

const ctx = { output: async () => undefined, signal: new AbortController().signal };

test("a piece of an attachment holds no more of its message than its bytes", async () => {
  const files = { parts: new Map(), blobs: new Map<number, Uint8Array[]>(), received: new Map() };
  const data = new Uint8Array(4 * 1024 * 1024).subarray(0, 100_000);
  await receiveBytes(files, create(WorkerOutputSchema, { blob: 1, data }), ctx);
  expect(files.blobs.get(1)?.[0]?.buffer.byteLength).toBeLessThan(200_000);
});

test("an attachment may come in 10,000 pieces", async () => {
  const files = { parts: new Map(), blobs: new Map<number, Uint8Array[]>(), received: new Map() };
  const receive = (offset: bigint) =>
    receiveBytes(files, create(WorkerOutputSchema, { blob: 1, offset, data: new Uint8Array(1) }), ctx);
  for (let n = 0n; n < 10_000n; n += 1n) await receive(n);
  await expect(receive(10_000n)).rejects.toThrow("in more than 10000 pieces");
});

test("answers that a worker may ask for again are bounded together", async () => {
  const rejected: unknown[] = [];
  const body = {
    ...{ assignment: "a", answers: new Map(), answersLength: 0, hasResult: false, parts: new Map() },
    ...{ send: () => undefined, reject: (error: unknown) => rejected.push(error) },
  } as unknown as HostedBody;
  const state = { get: async () => "x".repeat(60_000) };
  const kind = {
    ...{ owner: "The worker", survives: true, requestProblem: () => undefined, contextOf: () => ({ state }) },
  } as unknown as BodyKind<HostedBody>;
  for (let number = 1; number <= 200; number += 1)
    await answerBody(
      body,
      kind,
      create(WorkerBodyRequestSchema, { number, request: { case: "getState", value: "s" } }),
    );
  expect(String(rejected[0])).toContain("asked for answers of more than 8388608 characters");
  expect([...body.answers.values()].filter(Boolean).length).toBeLessThan(200);
});
