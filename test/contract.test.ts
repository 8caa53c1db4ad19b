import { readdirSync } from "node:fs";
import type { DescEnum, DescFile, DescMessage } from "@bufbuild/protobuf";
import { nestedTypes } from "@bufbuild/protobuf/reflect";
import { expect, test } from "vitest";
import { PermissionService } from "../gen/opencode/tool/v1/permission_service_pb.ts";
import {
  file_opencode_tool_v1_tool,
  PermissionReply,
  type PermissionResponseSchema,
} from "../gen/opencode/tool/v1/tool_pb.ts";

/** Fields of each message in the document from which the contract was ordered: `name=number`, with ` in ONEOF` for arms. */
const ordered: Record<string, string[]> = {
  ToolState: ["pending=1 in state", "running=2 in state", "completed=3 in state", "error=4 in state"],
  ToolStatePending: ["status=1", "input=2", "raw=3"],
  ToolStateRunning: ["status=1", "input=2", "title=3", "metadata=4", "time=5"],
  ToolStateCompleted: ["status=1", "input=2", "output=3", "title=4", "metadata=5", "time=6", "attachments=7"],
  ToolStateError: ["status=1", "input=2", "error=3", "metadata=4", "time=5"],
  ToolTime: ["start=1"],
  ToolTimeWithEnd: ["start=1", "end=2", "compacted=3"],
  ToolPart: [
    "id=1",
    "session_id=2",
    "message_id=3",
    "type=4",
    "call_id=5",
    "tool=6",
    "pending=7 in state",
    "running=8 in state",
    "completed=9 in state",
    "error=10 in state",
    "metadata=11",
  ],
  PermissionRequest: ["id=1", "session_id=2", "permission=3", "patterns=4", "metadata=5", "always=6", "tool=7"],
  PermissionToolContext: ["message_id=1", "call_id=2"],
  PermissionResponse: ["session_id=1", "permission_id=2", "reply=3"],
  Empty: [],
};

const messages = new Map(file_opencode_tool_v1_tool.messages.map((message) => [message.name, message]));

test.each(Object.entries(ordered))("%s has the ordered fields, and further fields start at 20", (name, fields) => {
  const message = messages.get(name);
  const described = (message?.fields ?? []).map(
    ({ name, number, oneof }) => `${name}=${number}${oneof ? ` in ${oneof.name}` : ""}`,
  );
  expect(message?.name).toBe(name);
  expect(described.slice(0, fields.length)).toEqual(fields);
  expect((message?.fields ?? []).slice(fields.length).every(({ number }) => number >= 20)).toBe(true);
});

test("ToolState and ToolPart.state have the same arms", () => {
  const arms = (name: string) =>
    messages
      .get(name)
      ?.oneofs.find((oneof) => oneof.name === "state")
      ?.fields.map((field) => [field.name, field.message?.typeName]);
  expect(arms("ToolState")).toEqual([
    ["pending", "opencode.tool.v1.ToolStatePending"],
    ["running", "opencode.tool.v1.ToolStateRunning"],
    ["completed", "opencode.tool.v1.ToolStateCompleted"],
    ["error", "opencode.tool.v1.ToolStateError"],
  ]);
  expect(arms("ToolPart")).toEqual(arms("ToolState"));
});

test("the replies have the ordered numbers", () => {
  expect(PermissionReply).toEqual({ UNSPECIFIED: 0, ONCE: 1, ALWAYS: 2, REJECT: 3 });
});

test("RespondToPermission takes PermissionResponse and returns Empty", () => {
  const { input, output } = PermissionService.method.respondToPermission;
  const expected: typeof PermissionResponseSchema.typeName = "opencode.tool.v1.PermissionResponse";
  expect([input.typeName, output.typeName]).toEqual([expected, "opencode.tool.v1.Empty"]);
});

/** Numbers that fields and values of the next changes have been given; they need not arrive in order. */
const assigned: Record<string, number[]> = {
  PermissionRequest: [34, 35, 36, 37, 38],
  PermissionResponse: [29, 30, 31, 32],
  PermissionSettled: [13, 14, 15, 16, 17],
  DecisionRecord: [16, 17, 18, 19, 20, 21, 22],
  Grant: [18, 19, 20],
  ArgvPrefix: [2, 3],
  AnswerMethod: [1, 2, 3, 4, 5, 6],
  Credential: [12, 13, 15],
  GetServerInfoResponse: [23, 24, 25, 26],
  SessionEvent: [12, 13],
  PermissionReason: [11, 12, 13],
  DecisionKind: [9, 10, 11, 12, 13, 14],
  SourceKind: [3, 4],
  ErrorReason: [61, 62, 63, 64, 65, 66, 68, 69],
};

test("each number between two used ones is reserved, or belongs to the ordering document", async () => {
  const folder = "../gen/opencode/tool/v1/";
  const modules: object[] = await Promise.all(
    readdirSync(new URL(folder, import.meta.url)).map((name) => import(folder + name)),
  );
  const files = modules.flatMap((module) => Object.values(module)).filter((value) => value?.kind === "file");
  const types = files.flatMap((file: DescFile) => [...nestedTypes(file)]);
  const described = types.filter((type) => type.kind === "message" || type.kind === "enum");
  expect(described.length).toBeGreaterThan(200);
  expect(described.flatMap(gapsOf)).toEqual([]);
});

/** `NAME NUMBER` of each number below the highest one of a type that is not used, reserved or assigned. */
function gapsOf(type: DescMessage | DescEnum): string[] {
  const used = type.kind === "enum" ? type.values : type.fields;
  // The end of a range is exclusive for messages, and inclusive for enums.
  const past = type.kind === "enum" ? 1 : 0;
  const known = new Set(used.map(({ number }) => number));
  const highest = Math.max(0, ...known);
  for (const number of assigned[type.name] ?? []) known.add(number);
  for (const { start, end } of type.proto.reservedRange) {
    for (let number = start; number < end + past; number += 1) known.add(number);
  }
  const first = type.name in ordered ? 20 : 1;
  return Array.from({ length: highest }, (_, index) => index + 1)
    .filter((number) => number >= first && !known.has(number))
    .map((number) => `${type.name} ${number}`);
}
