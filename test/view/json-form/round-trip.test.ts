import {
  create,
  type DescField,
  type DescMessage,
  type DescOneof,
  equals,
  fromJson,
  type JsonObject,
  type JsonValue,
  type MessageInitShape,
  ScalarType,
} from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  PermissionRequestSchema,
  PermissionResponseSchema,
  PermissionToolContextSchema,
  ToolPartSchema,
  ToolStateCompletedSchema,
  ToolStateErrorSchema,
  ToolStatePendingSchema,
  ToolStateRunningSchema,
  ToolStateSchema,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { toJsonForm } from "../../../src/view/json-form/convert.ts";
import { fromJsonForm } from "./from-json-form.ts";

const messages: DescMessage[] = [
  ToolStateSchema,
  ToolStatePendingSchema,
  ToolStateRunningSchema,
  ToolStateCompletedSchema,
  ToolStateErrorSchema,
  ToolPartSchema,
  PermissionRequestSchema,
  PermissionToolContextSchema,
  PermissionResponseSchema,
  SessionEventSchema,
];

describe.each(messages.map((message) => [message.name, message] as const))("%s", (_, schema) => {
  test("survives the round trip through the JSON form", async () => {
    await fc.assert(
      fc.property(anyOf(schema), (init) => {
        const message = create(schema, init);
        const sent: JsonObject = JSON.parse(JSON.stringify(toJsonForm(schema, message)));
        const back = fromJsonForm(schema, sent);
        expect(back).toEqual(message);
        expect(equals(schema, back, message)).toBe(true);
      }),
      { numRuns: 200 },
    );
  });
});

test("keys, replies, states and numbers follow the ordered JSON", () => {
  const part = create(ToolPartSchema, {
    id: "prt_1",
    sessionId: "ses_1",
    messageId: "msg_1",
    type: "tool",
    callId: "c1",
    tool: "bash",
    state: { case: "running", value: { status: "running", input: { command_id: "kept" }, time: { start: 5 } } },
    permissionIds: ["per_1"],
    revision: 7n,
  });
  expect(toJsonForm(ToolPartSchema, part)).toEqual({
    id: "prt_1",
    sessionID: "ses_1",
    messageID: "msg_1",
    type: "tool",
    callID: "c1",
    tool: "bash",
    state: { status: "running", input: { command_id: "kept" }, time: { start: 5 } },
    agent: "",
    permissionIDs: ["per_1"],
    revision: 7,
    inputElided: false,
    editedBy: "",
    executor: "unspecified",
    worker: "",
    buildID: "",
    reportedBy: "",
    reportedInputDigest: "",
    cancelRequested: false,
    background: false,
    childSessionID: "",
    parentCallID: "",
  });
  const answer = create(PermissionResponseSchema, { reply: PermissionReply.ALWAYS });
  expect(toJsonForm(PermissionResponseSchema, answer)).toMatchObject({ reply: "always" });
});

test("required members of the ordered JSON are present even if unset", () => {
  const pending = toJsonForm(ToolStatePendingSchema, create(ToolStatePendingSchema, { status: "pending" }));
  expect(pending).toEqual({ status: "pending", input: {}, raw: "" });
  const ask = toJsonForm(PermissionRequestSchema, create(PermissionRequestSchema));
  expect(ask).toMatchObject({ patterns: [], always: [], metadata: {} });
});

test("reading ignores unknown keys, and refuses an unknown status and invalid values", () => {
  const state = { status: "pending", input: {}, raw: "", later: 1 };
  expect(fromJsonForm(ToolStatePendingSchema, state)).toMatchObject({ status: "pending" });
  expect(() => fromJsonForm(ToolPartSchema, { state: { status: "lost" } })).toThrow(
    'status is "lost"; it must be one of pending, running, completed, error',
  );
  expect(() => fromJsonForm(PermissionResponseSchema, { reply: "perhaps" })).toThrow(
    'PermissionReply from JSON: "perhaps"',
  );
});

/** Any message of this type, generated from its descriptor, so that new fields are covered without a change here. */
function anyOf(message: DescMessage): fc.Arbitrary<Record<string, unknown>> {
  const parts = message.members.map((member) =>
    member.kind === "oneof"
      ? ([member.localName, anyArm(member)] as const)
      : ([member.localName, anyField(member)] as const),
  );
  return fc.record(Object.fromEntries(parts)).map((all) => withoutAbsent(all));
}

function anyArm({ fields }: DescOneof): fc.Arbitrary<unknown> {
  return fc.oneof(...fields.map((field) => anyValue(field).map((value) => ({ case: field.localName, value }))));
}

function anyField(field: DescField): fc.Arbitrary<unknown> {
  const status = field.name === "status" && /^ToolState(\w+)$/.exec(field.parent.name)?.[1];
  if (status) return fc.constant(status.toLowerCase());
  const value = field.fieldKind === "list" ? fc.array(anyValue(field), { maxLength: 3 }) : anyValue(field);
  const maybe = field.proto.proto3Optional || (field.message && field.message.name !== "Struct");
  return maybe && field.fieldKind !== "list" ? fc.option(value, { nil: undefined }) : value;
}

function anyValue(field: DescField): fc.Arbitrary<unknown> {
  if (field.message?.name === "Struct") return anyObject;
  if (field.message?.name === "Value") return anyJson.map((value) => fromJson(ValueSchema, value));
  if (field.message) return anyOf(field.message);
  if (field.enum) return fc.constantFrom(...field.enum.values.map(({ number }) => number));
  switch (field.scalar) {
    case ScalarType.BOOL:
      return fc.boolean();
    case ScalarType.BYTES:
      return fc.uint8Array();
    case ScalarType.DOUBLE:
      return fc.double({ noNaN: true, noDefaultInfinity: true }).map((number) => number + 0);
    case ScalarType.UINT32:
      return fc.nat();
    case ScalarType.UINT64:
      return fc.bigInt(0n, BigInt(Number.MAX_SAFE_INTEGER));
    default:
      return fc.string({ unit: "binary" });
  }
}

// JSON has no -0.
const anyJson = fc.jsonValue().map((value): JsonValue => JSON.parse(JSON.stringify(value)));
const anyObject = fc
  .dictionary(fc.string(), fc.jsonValue())
  .map((value): JsonObject => JSON.parse(JSON.stringify(value)));

function withoutAbsent(all: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

test("events that opencode has, too, have its names and its properties", () => {
  const at = { seq: 1n, time: 5, sessionId: "ses_1" };
  const form = (event: MessageInitShape<typeof SessionEventSchema>["event"]) =>
    toJsonForm(SessionEventSchema, create(SessionEventSchema, { ...at, ...(event && { event }) }));
  expect(form({ case: "part", value: { id: "prt_1", callId: "c1" } })).toMatchObject({
    seq: 1,
    type: "message.part.updated",
    properties: { sessionID: "ses_1", part: { id: "prt_1", callID: "c1" }, time: 5 },
  });
  const request = { id: "per_1", sessionId: "ses_1", permission: "bash", patterns: ["make", "ls"], created: 4 };
  const tool = { messageId: "msg_1", callId: "c1" };
  expect(form({ case: "permissionAsked", value: { ...request, tool } })).toMatchObject({
    type: "permission.updated",
    properties: {
      ...{ id: "per_1", sessionID: "ses_1", permission: "bash", patterns: ["make", "ls"] },
      tool: { messageID: "msg_1", callID: "c1" },
      // The form of earlier clients.
      ...{ type: "bash", pattern: ["make", "ls"], messageID: "msg_1", callID: "c1", title: "bash make, ls" },
      time: { created: 4 },
    },
  });
  for (const [outcome, reply] of [
    [PermissionOutcome.ONCE, "once"],
    [PermissionOutcome.EDITED, "once"],
    [PermissionOutcome.ALWAYS, "always"],
    [PermissionOutcome.REJECT, "reject"],
    [PermissionOutcome.EXPIRED, "reject"],
  ] as const) {
    expect(
      form({ case: "permissionSettled", value: { permissionId: "per_1", sessionId: "ses_1", outcome } }),
    ).toMatchObject({
      type: "permission.replied",
      properties: { sessionID: "ses_1", permissionID: "per_1", response: reply, requestID: "per_1", reply },
    });
  }
});
