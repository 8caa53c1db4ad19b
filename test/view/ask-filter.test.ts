import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { type PermissionRequest, PermissionRequestSchema, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { filterCalls } from "../../src/view/ask-filter.ts";

type Init = Exclude<MessageInitShape<typeof PermissionRequestSchema>, PermissionRequest>;
const request = (id: string, more: Init = {}) =>
  create(PermissionRequestSchema, {
    ...{ id, sessionId: "ses_1", agent: "build", permission: "bash", patterns: ["npm test"] },
    view: { tool: "bash", input: [{ path: "/command", text: "npm test" }] },
    ...more,
  });
const found = (requests: readonly PermissionRequest[], filter = "", settled: readonly string[] = []) =>
  filterCalls(requests, filter, {
    requests: (one) => [one],
    isOpen: ({ id }) => !settled.includes(id),
    nameOf: (id) => `Title of ${id}`,
  }).map((group) => group.map(({ id }) => id).join(" "));

test("equal requests of several sessions form one group, in the place of the first; outcomes stand for themselves", () => {
  const other = request("b", { patterns: ["npm ci"] });
  const all = [request("a"), other, request("c", { sessionId: "ses_2" }), request("d")];
  expect(found(all)).toEqual(["a c d", "b"]);
  expect(found(all, "", ["a"])).toEqual(["a", "b", "c d"]);
});

test.each<[string, Init]>([
  ["permission", { permission: "edit" }],
  ["patterns", { patterns: ["npm test", "npm ci"] }],
  ["agent", { agent: "plan" }],
  ["subagent", { requester: { kind: "claude", subagent: "reviewer" } }],
  ["tool", { view: { tool: "shell", input: [{ path: "/command", text: "npm test" }] } }],
  ["value", { view: { tool: "bash", input: [{ path: "/command", text: "npm test " }] } }],
  ["field", { view: { tool: "bash", input: [{ path: "/text", text: "npm test" }] } }],
  ["rest of a cut value", { view: { tool: "bash", input: [{ path: "/command", text: "npm test", sha256: "ab" }] } }],
  [
    "script",
    { view: { tool: "bash", input: [{ path: "/command", text: "npm test" }], files: [{ path: "a", sha256: "ab" }] } },
  ],
])("requests that differ in the %s are not equal", (_, more) => {
  expect(found([request("a"), request("b", more)])).toEqual(["a", "b"]);
});

test("requests without a view are never equal", () => {
  const bare = (id: string) => create(PermissionRequestSchema, { id, agent: "build", permission: "bash" });
  expect(found([bare("a"), bare("b")])).toEqual(["a", "b"]);
});

test.each([
  ["", "a b c"],
  ["NPM", "a b"],
  ["npm ci", "b"],
  ['"i npm"', ""],
  ["tool:write", "c"],
  ["tool:ci", ""],
  ["agent:plan", "b c"],
  ["agent:plan npm", "b"],
  ['agent:"claude code"', "c"],
  ["session:ses_2", "c"],
  ['session:"title of ses_1"', "a b"],
  ["session:root", "b"],
  ["risk:network", "b"],
  ["network", "b"],
  ["secret text", "c"],
  ["agent:", "a b c"],
])("the filter %j finds %j", (filter, ids) => {
  const all = [
    request("a"),
    request("b", {
      ...{ agent: "plan", patterns: ["npm ci"], ancestry: ["ses_root", "ses_1"] },
      risks: [{ kind: RiskKind.NETWORK, parts: ["npm"] }],
    }),
    request("c", {
      ...{ agent: "plan", sessionId: "ses_2", permission: "edit", patterns: ["a.txt"], requester: { kind: "claude" } },
      view: { tool: "write", input: [{ path: "/content", text: "a secret text" }] },
    }),
  ];
  expect(found(all, filter).join(" ")).toBe(ids);
});
