import { create, type DescFile, fromBinary, type Message, toBinary } from "@bufbuild/protobuf";
import { FloatValueSchema, Int64ValueSchema } from "@bufbuild/protobuf/wkt";
import * as fc from "fast-check";
import { expect, test } from "vitest";
import { file_opencode_tool_v1_event, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { file_opencode_tool_v1_permission } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { file_opencode_tool_v1_permission_service } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { file_opencode_tool_v1_session_service } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { file_opencode_tool_v1_tool, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  CallToolResponseSchema,
  file_opencode_tool_v1_tool_service,
  LimitsSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { file_opencode_tool_v1_worker } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { file_opencode_tool_v1_worker_service } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { encodeMessage } from "../../src/core/encode-message.ts";
import { anyMessage } from "./messages.ts";

const files: readonly DescFile[] = [
  file_opencode_tool_v1_event,
  file_opencode_tool_v1_permission,
  file_opencode_tool_v1_permission_service,
  file_opencode_tool_v1_session_service,
  file_opencode_tool_v1_tool,
  file_opencode_tool_v1_tool_service,
  file_opencode_tool_v1_worker,
  file_opencode_tool_v1_worker_service,
];
const schemas = files.flatMap(({ messages }) => messages);

test.each(schemas)("$name is encoded to the bytes of the generated encoder", async (schema) => {
  await fc.assert(
    fc.property(anyMessage(schema), (message) => {
      expect(Buffer.compare(encodeMessage(schema, message), toBinary(schema, message))).toBe(0);
    }),
    { numRuns: 40 },
  );
});

test("fields that a newer version wrote are preserved", () => {
  const newer = Buffer.concat([
    toBinary(SessionEventSchema, create(SessionEventSchema, { seq: 7n, sessionId: "ses_1" })),
    Buffer.from([0xfa, 0x06, 0x03, 1, 2, 3]),
  ]);
  expect(Buffer.compare(encodeMessage(SessionEventSchema, fromBinary(SessionEventSchema, newer)), newer)).toBe(0);
});

test("known bytes of a nested message are copied, also if another message is encoded to know them", () => {
  const part = create(ToolPartSchema, { id: "prt_1", tool: "echo", callId: "c".repeat(300) });
  const response = create(CallToolResponseSchema, { part, lastSeq: 3n, storeId: "store" });
  const known = (message: Message) => (message === part ? encodeMessage(ToolPartSchema, part) : undefined);
  expect(
    Buffer.compare(encodeMessage(CallToolResponseSchema, response, known), toBinary(CallToolResponseSchema, response)),
  ).toBe(0);
});

test("a message that cannot be encoded is refused and harms no other", () => {
  const negative = create(SessionEventSchema, { sessionId: "ses_1", seq: -1n });
  expect(() => encodeMessage(SessionEventSchema, negative)).toThrow("SessionEvent.seq");
  const fraction = create(LimitsSchema, { openAsks: 0.5 });
  expect(() => encodeMessage(LimitsSchema, fraction)).toThrow("Limits.open_asks");
  expect(() => encodeMessage(LimitsSchema, negative)).toThrow("is not a opencode.tool.v1.Limits");
  const good = create(SessionEventSchema, { sessionId: "ses_2", seq: 1n });
  expect(fromBinary(SessionEventSchema, encodeMessage(SessionEventSchema, good))).toEqual(good);
});

test("a message type that has no encoder is refused each time", () => {
  const half = create(FloatValueSchema, { value: 0.5 });
  for (let count = 0; count < 2; count += 1)
    expect(() => encodeMessage(FloatValueSchema, half)).toThrow("FloatValue.value");
});

test.each([1n, -1n, 2n ** 63n - 1n, -(2n ** 63n)])(
  "the signed integer %s is encoded as the generated encoder does",
  (value) => {
    const message = create(Int64ValueSchema, { value });
    expect(Buffer.compare(encodeMessage(Int64ValueSchema, message), toBinary(Int64ValueSchema, message))).toBe(0);
  },
);

test("encoded bytes stay as they are while other messages are encoded", () => {
  const event = (sessionId: string) => encodeMessage(SessionEventSchema, create(SessionEventSchema, { sessionId }));
  const first = event("first");
  event("x".repeat(2_000_000));
  expect(fromBinary(SessionEventSchema, first).sessionId).toBe("first");
});
