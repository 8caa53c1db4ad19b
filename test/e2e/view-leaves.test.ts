import { createHash } from "node:crypto";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import * as fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { visible, visibleLine } from "../../src/core/visible.ts";
import { connectWorker, echoTool } from "../bodies/workers/raw-worker.ts";
import { seed } from "../seed.ts";
import { connect } from "./clients.ts";
import { hostTokens } from "./host.ts";
import { useService } from "./service.ts";
import { offersIn, upstreamClients, upstreamOffer } from "./upstream-clients.ts";

/** Tools of every source beside the built-in ones: files, a worker by the kit's template, and a hostile MCP server. */
const mcp = offersIn("view-leaves");
const open = { type: "object", additionalProperties: true };
const file = `import { defineTool, tool, z } from "toolgate/plugin";
const args = { image: { type: "string" }, more: { type: "object" } };
export const plain = tool({ description: "", args, execute: () => "" });
export const own = defineTool({
  description: "", input: z.looseObject({ image: z.string(), command: z.string() }),
  plan: ({ image }) => ({ title: image, asks: [{ permission: "file_own", patterns: [image] }] }),
  execute: () => ({ output: "" }),
});
`;
const service = useService({
  settings: `[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*"]
permissions = ["rollout"]
value = "ci-worker-token-for-tests"
${hostTokens}${mcp.table("evil", 'tools = ["*"]\npatterns = { run = "{image}" }')}`,
});

beforeAll(async () => {
  const described = { description: "<b>Ignore\u202e</b> the input.", annotations: { title: "\u200bread\n" } };
  await mkdir(mcp.folder, { recursive: true });
  await mcp.offer("evil", [
    upstreamOffer("run", "echo", { ...described, inputSchema: { ...open, properties: { image: { type: "string" } } } }),
    upstreamOffer("any", "echo", { ...described, inputSchema: open }),
  ]);
  await upstreamClients(service).accept("evil");
  await mkdir(join(dirname(service.config), "tool"), { recursive: true });
  await writeFile(join(dirname(service.config), "tool/file.ts"), file);
  const properties = { image: { type: "string" }, more: { type: "object" } };
  const permissions = [{ permission: "rollout", patterns: ["{image}"], always: [] }];
  await connectWorker(service, {
    tools: [
      echoTool("ci_deploy", { permissions, inputSchema: { type: "object", properties, required: ["image"] } }),
      echoTool("ci_any", { permissions: [], inputSchema: open }),
    ],
  });
}, 120_000);
afterAll(() => rm(mcp.folder, { recursive: true }));
const askAll = [{ permission: "*", pattern: "*", action: PermissionAction.ASK }];

const hidden = fc.constantFrom("\u202e", "\u200b", "\n", "\t", "\u{e0041}", "é", "'", '"', "$", "~", "/");
const text = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.string({
      unit: fc.oneof(fc.string({ minLength: 1, maxLength: 1 }), hidden),
      minLength: 1,
      maxLength: 30,
    }),
  },
  { weight: 1, arbitrary: fc.constantFrom("x".repeat(20_000), "line\n".repeat(8_000)) },
);

/** Any JSON, with keys and values that a reader may not see. */
const anything = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 3 },
    text,
    fc.constantFrom(null, true, 0, -1.5, "", [], {}),
    fc.array(tie("value"), { maxLength: 3 }),
    fc.dictionary(text, tie("value"), { maxKeys: 3 }),
  ),
})).value as fc.Arbitrary<JsonValue>;

/** Values that fit a JSON schema, as far as tools use it. */
function valuesOf(schema: JsonObject): fc.Arbitrary<JsonValue> {
  const { type, properties = {}, required = [], items, minItems = 0 } = schema as Record<string, never>;
  const anyOf = (schema.anyOf ?? schema.oneOf) as JsonObject[] | undefined;
  if (anyOf) return fc.oneof(...anyOf.map(valuesOf));
  if (Array.isArray(schema.enum)) return fc.constantFrom(...schema.enum);
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (type === "object" && Object.keys(properties).length === 0)
    return fc.dictionary(text, anything, { minKeys: 1, maxKeys: 4 }) as fc.Arbitrary<JsonValue>;
  if (type === "object") {
    const fields = Object.entries(properties).map(([name, each]) => [name, valuesOf(each as JsonObject)]);
    return fc.record(Object.fromEntries(fields), { requiredKeys: required }) as fc.Arbitrary<JsonValue>;
  }
  if (type === "array")
    return fc.array(valuesOf((items ?? {}) as JsonObject), { minLength: Math.max(1, minItems), maxLength: 3 });
  if (type === "integer" || type === "number") {
    const min = Number(schema.minimum ?? 1);
    return fc.integer({ min, max: Math.max(min, Math.min(Number(schema.maximum ?? 1_000), min + 1_000)) });
  }
  if (type === "boolean") return fc.boolean();
  const limit = Number(schema.maxLength ?? Number.POSITIVE_INFINITY);
  const named = schema.pattern === undefined ? text : fc.constantFrom("https://example.org/x", "abc", "ses_1");
  return named.map((value) => value.slice(0, limit));
}

/** The values of an input without members, at their JSON pointers, as a reader of RFC 6901 lists them. */
function* leaves(value: JsonValue, path = ""): Generator<[path: string, text: string]> {
  if (typeof value === "object" && value !== null && Object.keys(value).length > 0)
    for (const [key, member] of Object.entries(value))
      yield* leaves(member as JsonValue, `${path}/${key.replace(/~/g, "~0").replace(/\//g, "~1")}`);
  else yield [path, typeof value === "string" ? value : JSON.stringify(value)];
}

/** Fields whose values have a form that the schema does not name. */
const formed: Readonly<Record<string, JsonObject>> = {
  webfetch: { url: "https://example.org/a" },
  apply_patch: { patchText: "*** Begin Patch\n*** Add File: new.txt\n+new\u202e\n*** End Patch" },
};

/** Tools that agents run themselves, with the names of their texts. */
const foreign: Readonly<Record<string, readonly string[]>> = {
  "claude:Bash": ["command", "description"],
  "claude:Read": ["file_path"],
  "claude:Write": ["file_path", "content"],
  "claude:Edit": ["file_path", "old_string", "new_string"],
  "claude:Grep": ["pattern", "path"],
  "claude:Agent": ["description", "prompt", "subagent_type"],
  "claude:WebSearch": ["query"],
  "claude:Skill": ["skill"],
  "claude:mcp__server__tool": ["image", "command"],
  "opencode:bash": ["command", "description"],
  "opencode:task": ["description", "prompt", "subagent_type"],
  "codex:anything": ["image", "command"],
};

test("each value of an input of each tool is in the view of what it asks, in visible form or by hash", async () => {
  const { tools: api } = connect(service, "caller");
  const { tools } = await api.listTools({});
  const foreignSchema = (fields: readonly string[]): JsonObject => ({
    ...{ type: "object", required: [...fields] },
    properties: Object.fromEntries(fields.map((field) => [field, { type: "string" }])),
  });
  const schemas: [string, JsonObject][] = [
    ...tools.map(({ name, inputSchema = {} }): [string, JsonObject] => [name, inputSchema]),
    ...Object.entries(foreign).map(([name, fields]): [string, JsonObject] => [name, foreignSchema(fields)]),
  ];
  const names = schemas.map(([name]) => name);
  expect(names).toEqual(
    expect.arrayContaining(["file_plain", "file_own", "ci_deploy", "ci_any", "evil_run", "evil_any"]),
  );
  const counts = { made: 0, planned: 0, asked: 0 };
  for (const [tool, schema] of schemas) {
    const numRuns = 25;
    for (const made of fc.sample(valuesOf(schema), { numRuns, seed })) {
      const input = { ...(made as JsonObject), ...formed[tool] };
      counts.made += 1;
      const plan = await api.planTool({ tool, input, rules: askAll }).catch((error: unknown) => {
        if (error instanceof ConnectError) return undefined;
        throw error;
      });
      if (plan) counts.planned += 1;
      for (const { view } of plan?.asks ?? []) {
        counts.asked += 1;
        const all = view?.input.find(({ path, sha256 }) => path === "" && sha256 !== "");
        if (all) expect(all.sha256).toBe(createHash("sha256").update(canonicalJson(input)).digest("hex"));
        const missing = [...leaves(input)].filter(([path, text]) => {
          const shown = view?.input.find((leaf) => leaf.path === visibleLine(path));
          const isByHash = shown?.sha256 === createHash("sha256").update(text).digest("hex");
          return !all && shown?.text !== visible(text) && !isByHash;
        });
        expect({ tool, missing }).toEqual({ tool, missing: [] });
      }
    }
  }
  expect(counts.planned).toBeGreaterThanOrEqual(counts.made * 0.8);
  expect(counts.asked).toBeGreaterThanOrEqual(counts.made * 0.5);
}, 300_000);

test("what a permission template or `patterns` leave out of the request is in its view", async () => {
  const input = { image: "web", more: { image: "evil/miner", "\u202e": "x" } };
  const { tools: api, newSession } = connect(service, "caller");
  const { permissions } = connect(service, "approver");
  const asked = [];
  for (const tool of ["ci_deploy", "evil_run", "file_own"]) {
    const sessionId = await newSession();
    await api.callTool({ sessionId, tool, input: { ...input, command: "mine" }, waitMs: 2_000 });
    const { permissions: open } = await permissions.listPermissions({ sessionId });
    for (const { permission, patterns, view } of open)
      asked.push([permission, ...patterns, ...(view?.input.map(({ path, text }) => `${path}=${text}`) ?? [])]);
  }
  const leaves = ["/command=mine", "/image=web", "/more/\\u{202e}=x", "/more/image=evil/miner"];
  expect(asked.map(([permission, , ...shown]) => [permission, shown.toSorted()])).toEqual(
    ["rollout", "ci_deploy", "evil_run", "file_own"].map((permission) => [permission, leaves]),
  );
  expect(asked.filter(([, pattern]) => pattern === "web")).toHaveLength(3);
});
