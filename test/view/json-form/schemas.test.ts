import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { DescMessage } from "@bufbuild/protobuf";
import { Ajv2020 } from "ajv/dist/2020.js";
import { expect, test } from "vitest";
import type * as z from "zod";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import {
  PermissionAction,
  PermissionLayer,
  PermissionSettledSchema,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  PermissionRequestSchema,
  PermissionToolContextSchema,
  RiskKind,
  ToolEffects,
  ToolErrorReason,
  ToolPartSchema,
  ToolStateCompletedSchema,
  ToolStateErrorSchema,
  ToolStatePendingSchema,
  ToolStateRunningSchema,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { keyOf, toJsonForm } from "../../../src/view/json-form/convert.ts";
import * as schemas from "../../../src/view/json-form/schemas.ts";
import { connect } from "../../e2e/clients.ts";
import { nameOf, read } from "../../e2e/reading.ts";
import { startService } from "../../e2e/service.ts";
import { eventType } from "./from-json-form.ts";

const folder = join(import.meta.dirname, "../../../gen/jsonschema");
const files = readdirSync(folder);
const ajv = new Ajv2020({ allErrors: true });
for (const file of files) ajv.addSchema(JSON.parse(readFileSync(join(folder, file), "utf8")));

/** Returns the validation errors of a value; undefined if it is valid. */
function misfit(name: string, value: unknown): string | undefined {
  return ajv.validate(`${name}.schema.json`, value) ? undefined : ajv.errorsText();
}

/** The files of the ordered schemas. */
const ordered = [
  "toolState",
  "toolStatePending",
  "toolStateRunning",
  "toolStateCompleted",
  "toolStateError",
  "toolPart",
  "permissionRequest",
  "permissionReply",
  "permissionToolContext",
];

test("there is a file for each ordered schema, and one for what a watcher prints", () => {
  expect(files.toSorted()).toEqual([...ordered, "sessionEvent"].map((name) => `${name}.schema.json`).toSorted());
});

test("every event of a session is valid and covers each ordered schema", async () => {
  const service = await startService();
  const agent = connect(service, "caller");
  const person = connect(service, "approver");
  const sessionId = await agent.newSession();
  const watched = read(person.tools.watchSession({ sessionId }));
  const call = (callId: string, command: string) =>
    agent.tools.callTool({ sessionId, callId, tool: "bash", input: { command }, waitMs: 0 });
  const answer = async (reply: PermissionReply, message = "") => {
    const { id } = await watched.until("permissionAsked");
    await person.permissions.respondToPermission({ sessionId, permissionId: id, reply, message });
    await watched.find(({ event }) => event.case === "part" && /completed|error/.test(String(event.value.state.case)));
  };
  await call("c1", "echo once");
  await answer(PermissionReply.ONCE);
  await call("c2", "echo always");
  await answer(PermissionReply.ALWAYS);
  await call("c3", "echo never");
  await answer(PermissionReply.REJECT, "No.");
  const { grants } = await person.permissions.listGrants({});
  await person.permissions.revokeGrant({ grantId: grants[0]?.id ?? "" });
  await watched.until("revoked");

  expect(new Set(watched.seen.map(nameOf))).toEqual(
    new Set("pending running completed error output permissionAsked permissionSettled granted revoked".split(" ")),
  );
  const met = new Set<string>();
  const fits = (name: string, value: unknown) => {
    expect([name, misfit(name, value)]).toEqual([name, undefined]);
    met.add(name);
  };
  for (const event of watched.seen) {
    fits("sessionEvent", toJsonForm(SessionEventSchema, event));
    if (event.event.case === "part") {
      const { state, ...part } = toJsonForm(ToolPartSchema, event.event.value);
      fits("toolPart", { ...part, state });
      fits("toolState", state);
      fits(`toolState${capital(nameOf(event))}`, state);
    }
    if (event.event.case === "permissionAsked") {
      const request = toJsonForm(PermissionRequestSchema, event.event.value);
      fits("permissionRequest", request);
      fits("permissionToolContext", request.tool);
    }
    if (event.event.case === "permissionSettled") {
      fits("permissionReply", toJsonForm(PermissionSettledSchema, event.event.value).outcome);
    }
  }
  expect(met).toEqual(new Set([...ordered, "sessionEvent"]));
});

test("opencode's own JSON is valid: keys of Toolgate are optional", () => {
  const state = { status: "error", input: {}, error: "no", time: { start: 1, end: 2 } };
  const part = { id: "prt", sessionID: "ses", messageID: "msg", type: "tool", callID: "c", tool: "bash", state };
  expect(misfit("toolPart", part)).toBeUndefined();
  const request = { id: "per1", sessionID: "ses1", permission: "bash", patterns: [], metadata: {}, always: [] };
  expect(misfit("permissionRequest", request)).toBeUndefined();
});

test("invalid values are refused", () => {
  const pending = { status: "pending", input: {}, raw: "" };
  expect(misfit("toolStatePending", pending)).toBeUndefined();
  expect(misfit("toolStatePending", { ...pending, status: "running" })).toBeDefined();
  expect(misfit("toolState", { ...pending, raw: undefined })).toBeDefined();
  const request = { id: "1", sessionID: "ses1", permission: "bash", patterns: [], metadata: {}, always: [] };
  expect(misfit("permissionRequest", request)).toContain("/id must match pattern");
  expect(misfit("permissionReply", "perhaps")).toBeDefined();
});

test.each<[DescMessage, z.ZodObject]>([
  [ToolStatePendingSchema, schemas.toolStatePendingSchema],
  [ToolStateRunningSchema, schemas.toolStateRunningSchema],
  [ToolStateCompletedSchema, schemas.toolStateCompletedSchema],
  [ToolStateErrorSchema, schemas.toolStateErrorSchema],
  [ToolPartSchema, schemas.toolPartSchema],
  [PermissionRequestSchema, schemas.permissionRequestSchema],
  [PermissionToolContextSchema, schemas.permissionToolContextSchema],
])("$name: the schema has the contract's fields and no other", (message, schema) => {
  const keys = message.members.map((member) => (member.kind === "oneof" ? member.name : keyOf(member)));
  expect(Object.keys(schema.shape).toSorted()).toEqual(keys.toSorted());
});

test("the schemas use the contract's names of replies, reasons, effects and events", () => {
  expect(["unspecified", ...schemas.permissionReplySchema.options]).toEqual(wordsOf(PermissionReply));
  expect(schemas.toolStateErrorSchema.shape.reason.unwrap().options).toEqual(wordsOf(ToolErrorReason));
  expect(schemas.toolStateErrorSchema.shape.effects.unwrap().options).toEqual(wordsOf(ToolEffects));
  const lists = files.flatMap((file) => enumsIn(JSON.parse(readFileSync(join(folder, file), "utf8"))));
  for (const words of [PermissionLayer, RiskKind, PermissionAction].map(wordsOf)) expect(lists).toContainEqual(words);
  const types = schemas.sessionEventSchema.options.map(({ shape }) => shape.type.value);
  expect(types).toEqual(SessionEventSchema.oneofs[0]?.fields.map(({ name }) => eventType(name)));
});

const wordsOf = (values: object) => Object.keys(values).map((word) => word.toLowerCase());

/** Finds the lists of words in a schema. */
function enumsIn(value: unknown): unknown[] {
  if (typeof value !== "object" || value === null) return [];
  const own = "enum" in value ? [value.enum] : [];
  return [...own, ...Object.values(value).flatMap(enumsIn)];
}

const capital = (word: string) => word.slice(0, 1).toUpperCase() + word.slice(1);
