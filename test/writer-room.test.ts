import { createRequire } from "node:module";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import * as fc from "fast-check";
import { expect, test } from "vitest";
import { SessionEventSchema } from "../gen/opencode/tool/v1/event_pb.ts";
import { ToolPartSchema } from "../gen/opencode/tool/v1/tool_pb.ts";
import "../src/writer-room.ts";

// The library's other build has a writer of its own, which nobody touches.
const untouched: { toBinary: typeof toBinary } = createRequire(import.meta.url)("@bufbuild/protobuf");

const text = fc.oneof(
  fc.string(),
  fc.string({ unit: "binary" }),
  fc.integer({ min: 0, max: 300_000 }).map((length) => "xé".repeat(length)),
);
const part = fc.record({
  id: text,
  revision: fc.bigInt({ min: 0n, max: 2n ** 60n }),
  output: text,
  start: fc.double(),
});

test("what is encoded is what the library encodes, whatever was encoded before", async () => {
  await fc.assert(
    fc.property(fc.array(part, { maxLength: 5 }), (parts) => {
      for (const { id, revision, output, start } of parts) {
        const value = {
          output,
          input: { output, start: Number.isFinite(start) ? start : 0 },
          time: { start, end: start },
        };
        const message = create(ToolPartSchema, { id, revision, state: { case: "completed", value } });
        expect(Buffer.compare(toBinary(ToolPartSchema, message), untouched.toBinary(ToolPartSchema, message))).toBe(0);
      }
    }),
  );
});

test("a writer that writes while another one does has room of its own", () => {
  const outer = new BinaryWriter().tag(1, WireType.LengthDelimited).string("outer");
  const event = create(SessionEventSchema, { sessionId: "ses_1", time: 1.5 });
  const inner = toBinary(SessionEventSchema, event);
  expect(fromBinary(SessionEventSchema, inner)).toEqual(event);
  expect(Buffer.from(outer.finish()).toString()).toBe("\n\x05outer");
});

test("a writer can be used again, and what it gave away stays as it was", () => {
  const writer = new BinaryWriter();
  const first = writer.double(1.5).finish();
  toBinary(SessionEventSchema, create(SessionEventSchema, { sessionId: "x".repeat(2_000_000) }));
  const second = writer.double(2.5).finish();
  expect([Buffer.from(first).readDoubleLE(), Buffer.from(second).readDoubleLE()]).toEqual([1.5, 2.5]);
});

test("a message that cannot be encoded harms no other", () => {
  const bad = create(SessionEventSchema, { sessionId: "ses_1", seq: -1n });
  expect(() => toBinary(SessionEventSchema, bad)).toThrow();
  const good = create(SessionEventSchema, { sessionId: "ses_2", seq: 1n });
  expect(fromBinary(SessionEventSchema, toBinary(SessionEventSchema, good))).toEqual(good);
});

test("the library's writer still is as it was when this was written: it takes the room", () => {
  const writer = new BinaryWriter().bool(true);
  expect(Reflect.get(writer, "buffer").length).toBe(65_536);
});
