/** The contract, the JSON form and the inputs of tools, as the order writes them. */
import { readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { DescField, JsonObject } from "@bufbuild/protobuf";
import { FieldDescriptorProto_Label, FieldDescriptorProto_Type } from "@bufbuild/protobuf/wkt";
import { Ajv2020 } from "ajv/dist/2020.js";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import * as contract from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolStatsSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import * as validators from "../../src/view/json-form/schemas.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { block } from "./blocks.ts";

describe("the contract", () => {
  const messages = new Map(
    [
      contract.ToolStatePendingSchema,
      contract.ToolStateRunningSchema,
      contract.ToolStateCompletedSchema,
      contract.ToolStateErrorSchema,
      contract.ToolTimeSchema,
      contract.ToolTimeWithEndSchema,
      contract.ToolPartSchema,
      contract.PermissionRequestSchema,
      contract.PermissionToolContextSchema,
      contract.PermissionResponseSchema,
      contract.EmptySchema,
    ].map((message) => [message.name, message]),
  );
  const ordered = [block("001.2"), block("001.3"), block("001.4"), block("001.6")].flatMap((text) =>
    [...text.matchAll(/^message (\w+) \{([\s\S]*?)\}$/gm)].map(([, name = "", body = ""]) => ({
      name,
      fields: fieldsOf(body),
    })),
  );

  test.each(ordered)("rows 55 to 65: $name has the ordered fields", ({ name, fields }) => {
    const own = messages.get(name)?.fields.map(written) ?? [];
    expect(own).toEqual(expect.arrayContaining(fields));
  });

  test("row 54: a state is one of four, numbered in their order", () => {
    const states = /oneof tool_state \{([\s\S]*?)\n\}/.exec(block("001.2"))?.[1] ?? "";
    expect(contract.ToolStateSchema.fields.map(written)).toEqual(fieldsOf(states));
  });

  test("row 66: replies have the ordered names and numbers", () => {
    const ordered = [...block("001.5").matchAll(/(PERMISSION_REPLY_\w+) = (\d)/g)].map(([, name, number]) => [
      name,
      Number(number),
    ]);
    expect(contract.PermissionReplySchema.values.map(({ name, number }) => [name, number])).toEqual(ordered);
  });

  test("row 67: RespondToPermission takes a PermissionResponse and returns Empty", () => {
    const [, rpc, input, output] = /rpc (\w+)\((\w+)\) returns \((\w+)\)/.exec(block("001.6")) ?? [];
    const method = PermissionService.methods.find(({ name }) => name === rpc);
    expect([method?.input.name, method?.output.name, method?.methodKind]).toEqual([input, output, "unary"]);
  });

  test("row 158: the figures of a tool have the ordered names", () => {
    const figures = [...block("002.31").matchAll(/^ {2}(\w+):/gm)].map(([, name]) => name);
    expect(ToolStatsSchema.fields.map(({ localName }) => localName)).toEqual(figures);
  });
});

/** Fields of the order's own notation: label, type, name, number. */
function fieldsOf(body: string): string[] {
  return [...body.matchAll(/^ *(optional |repeated )?([\w.]+) (\w+) = (\d+);/gm)].map(
    ([, label = "", type, name, number]) => `${label}${type} ${name} = ${number}`,
  );
}

function written({ proto }: DescField): string {
  const isRepeated = proto.label === FieldDescriptorProto_Label.REPEATED;
  const label = isRepeated ? "repeated " : proto.proto3Optional ? "optional " : "";
  const type = proto.typeName.replace(/^\.opencode\.tool\.v1\./, "").replace(/^\./, "");
  return `${label}${type === "" ? FieldDescriptorProto_Type[proto.type].toLowerCase() : type} ${proto.name} = ${proto.number}`;
}

describe("the JSON form", () => {
  const folder = join(import.meta.dirname, "../../gen/jsonschema");
  const names = [...block("001.1").matchAll(/── (\w+)\.ts/g)].map(([, name = ""]) => name);
  const ajv = new Ajv2020();
  for (const name of [...names, "sessionEvent"])
    ajv.addSchema(JSON.parse(readFileSync(join(folder, `${name}.schema.json`), "utf8")));

  test("rows 77, 81, 82: each ordered validator is exported under its name, and has a JSON Schema", () => {
    expect(names).toHaveLength(9);
    for (const name of names)
      expect([name, Object.keys(validators)]).toEqual([name, expect.arrayContaining([`${name}Schema`])]);
  });

  test("rows 69, 78, 83, 175 to 178: validators and JSON Schemas accept the ordered states, and refuse them under another status", () => {
    const states: JsonObject[] = block("003.8")
      .split(/^\/\/ .*\n/m)
      .filter((text) => text.startsWith("{"))
      .map((text) => new Function(`return (${text})`)());
    expect(states.map(({ status }) => status)).toEqual(["pending", "running", "completed", "error"]);
    for (const state of states) {
      expect(validators.toolStateSchema.parse(state)).toEqual(state);
      expect(ajv.validate("toolState.schema.json", state)).toBe(true);
      const wrong = { ...state, status: "other" };
      expect(validators.toolStateSchema.safeParse(wrong).success).toBe(false);
      expect(ajv.validate("toolState.schema.json", wrong)).toBe(false);
    }
  });

  test("row 174: the ordered schema of a part takes our schema of a state", () => {
    const PartBase = z.object({ id: z.string(), sessionID: z.string(), messageID: z.string() });
    const { toolStatePendingSchema, toolStateRunningSchema, toolStateCompletedSchema, toolStateErrorSchema } =
      validators;
    const own = [toolStatePendingSchema, toolStateRunningSchema, toolStateCompletedSchema, toolStateErrorSchema];
    const given = ["ToolStatePending", "ToolStateRunning", "ToolStateCompleted", "ToolStateError"];
    // The state stands behind the part that uses it.
    const [part = "", state = ""] = block("003.7").replaceAll("export const", "const").split("// Tool states\n");
    const make = new Function("z", "PartBase", ...given, `${state}\n${part}\nreturn ToolPart;`);
    const ToolPart: z.ZodType = make(z, PartBase, ...own);
    const value = { id: "prt_1", sessionID: "ses_1", messageID: "msg_1", type: "tool", callID: "c", tool: "bash" };
    const whole = { ...value, state: { status: "pending", input: {}, raw: "" } };
    expect(ToolPart.parse(whole)).toEqual(whole);
    expect(validators.toolPartSchema.parse(whole)).toEqual(whole);
  });
});

describe("built-in tools", () => {
  const service = useService({
    settings: `experimental = ["lsp"]
[websearch]
provider = "searxng"
url = "http://127.0.0.1:9"
[codesearch]
provider = "ripgrep"
roots = ["."]
`,
  });

  /** An input for each block, with every field of it; `free` of its tool in `needed` may be left out. */
  const inputs: readonly [id: string, tool: string, input: JsonObject][] = [
    [block("002.2"), "read", { filePath: "a.txt", offset: 0, limit: 10 }],
    [block("002.3"), "edit", { filePath: "a.txt", oldString: "a", newString: "b", replaceAll: true }],
    [block("002.4"), "write", { filePath: "a.txt", content: "a" }],
    [block("002.5"), "glob", { pattern: "**/*.ts", path: "." }],
    [block("002.6"), "grep", { pattern: "a+", path: ".", include: "*.ts" }],
    [block("002.7"), "bash", { command: "ls", workdir: ".", timeout: 1_000 }],
    [block("002.8"), "task", { agent: "explore", prompt: "Look.", description: "Looks", session_id: "ses_1" }],
    [block("002.9"), "background_task", { agent: "explore", prompt: "Look.", description: "Looks" }],
    [block("002.10"), "webfetch", { url: "https://example.com/", format: "markdown", timeout: 10 }],
    [block("002.11"), "websearch", { query: "a", numResults: 3, type: "fast" }],
    [block("002.12"), "codesearch", { query: "a", language: ["ts"], repo: "x", path: "src", useRegexp: false }],
    [block("002.14"), "todoread", {}],
    [block("002.16"), "question", { question: "Which?", options: ["a", "b"] }],
    [block("002.17"), "skill", { name: "none" }],
  ];

  async function problemOf(tool: string, input: JsonObject) {
    const { problem } = await connect(service, "caller").tools.planTool({ tool, agent: "free", input });
    return problem?.reason === contract.ToolErrorReason.INVALID_INPUT ? problem.message : undefined;
  }

  test.each(inputs)("rows 90 to 133: takes the ordered input: %s", async (text, tool, input) => {
    const fields = [...text.matchAll(/^ {2}(\w+)(\??):/gm)].map(([, name = "", mark]) => ({
      name,
      isFree: mark === "?",
    }));
    expect(Object.keys(input)).toEqual(fields.map(({ name }) => name));
    expect(await problemOf(tool, input)).toBeUndefined();
    const needed = fields.filter(({ isFree }) => !isFree).map(({ name }) => [name, input[name] ?? null]);
    expect(await problemOf(tool, Object.fromEntries(needed))).toBeUndefined();
  });

  test("rows 117, 133: todowrite and batch take lists of the ordered objects", async () => {
    const fields = (text: string) => [...text.matchAll(/^ {4}(\w+):/gm)].map(([, name]) => name);
    const todo = { id: "1", content: "a", status: "in_progress", priority: "high" };
    expect(fields(block("002.13"))).toEqual(Object.keys(todo));
    expect(await problemOf("todowrite", { todos: [todo] })).toBeUndefined();
    const call = { tool: "read", args: { filePath: "a.txt" } };
    expect(fields(block("002.18"))).toEqual(Object.keys(call));
    expect(await problemOf("batch", { tools: [call] })).toBeUndefined();
  });

  test("rows 122 to 129: each lsp tool takes the ordered arguments", async () => {
    const values: JsonObject = {
      ...{ filePath: "a.ts", line: 1, character: 0, includeDeclaration: true, query: "a", limit: 5, severity: "error" },
      ...{ startLine: 1, startCharacter: 0, endLine: 1, endCharacter: 1, kind: "quickfix", newName: "b" },
    };
    const signatures = [...block("002.15").matchAll(/^(lsp_\w+)\((.*)\)$/gm)];
    expect(signatures).toHaveLength(8);
    for (const [, tool = "", names = ""] of signatures) {
      const input = Object.fromEntries(names.split(", ").map((name) => [name, values[name] ?? null]));
      expect([tool, await problemOf(tool, input)]).toEqual([tool, undefined]);
    }
  });

  test("row 104: bash works in directories and with files whose names have spaces", async () => {
    await mkdir(join(service.workspace, "a b"));
    const input = { command: 'echo hi > "c d.txt" && cat "c d.txt" && pwd', workdir: "a b" };
    const { part } = await connect(service, "caller").tools.callTool({ tool: "bash", agent: "free", input });
    expect(part?.state.value).toMatchObject({ output: expect.stringMatching(/^hi\n.*\/a b\n$/) });
  });

  test("row 169: the ordered list of tools is offered", async () => {
    const { tools } = await connect(service, "caller").tools.listTools({ agent: "free" });
    const ordered = [...block("003.4").matchAll(/(\w+)Tool,/g)].map(([, name = ""]) => name.toLowerCase());
    expect(ordered).toHaveLength(17);
    expect(tools.map(({ name }) => name)).toEqual(expect.arrayContaining(ordered));
  });
});
