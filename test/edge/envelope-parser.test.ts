import { expect, test } from "vitest";
import { EnvelopeParser } from "../../src/edge/rpc/direct.ts";
import { withFlags } from "../../src/edge/rpc/wire.ts";

test("messages arrive as they were sent, however their bytes are split", () => {
  let seed = 1;
  const random = (below: number) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  for (let round = 0; round < 200; round += 1) {
    const sent = Array.from({ length: 1 + random(6) }, (_, index) => Buffer.alloc(random(3_000), index + 1));
    const bytes = Buffer.concat(sent.map((message) => withFlags(0, message)));
    const parser = new EnvelopeParser();
    const taken: Buffer[] = [];
    for (let from = 0; from < bytes.length; ) {
      const chunk = bytes.subarray(from, from + 1 + random(round % 2 === 0 ? 7 : 2_000));
      from += chunk.length;
      parser.push(chunk);
      for (let next = parser.take(); next !== undefined; next = parser.take()) taken.push(next.message);
    }
    // They are compared at the end, so that a message whose memory was used again differs.
    expect(Buffer.concat(taken).equals(Buffer.concat(sent))).toBe(true);
    expect(taken.map(({ length }) => length)).toEqual(sent.map(({ length }) => length));
    expect(parser.restBytes).toBe(0);
  }
});

test("a message in many chunks is copied a few times, not for each of them", () => {
  const parser = new EnvelopeParser();
  const before = process.memoryUsage().arrayBuffers;
  const message = withFlags(0, Buffer.alloc(1_048_576));
  for (let from = 0; from < message.length; from += 64) parser.push(message.subarray(from, from + 64));
  expect(parser.take()?.message.length).toBe(1_048_576);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(16_777_216);
});
