import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { neededContract } from "../../build/prune-contract.ts";

const root = resolve(import.meta.dirname, "../..");
const gen = join(root, "gen");
const generated = (name: string) => readFile(join(gen, `opencode/tool/v1/${name}_pb.ts`), "utf8");

/** The needs of a page with this source. */
async function needsOf(source: string) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-page-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, "page.ts"), source);
  return neededContract(gen, [folder]);
}

test("a page that calls one rpc gets that rpc and the messages reachable from it", async () => {
  const { methods, types } = await needsOf("const { session } = await sessions.getSession({ sessionId });");
  expect([...methods]).toEqual(["GetSession"]);
  expect([...types]).toEqual(
    expect.arrayContaining(
      ["GetSessionRequest", "GetSessionResponse", "Session"].map((name) => `.opencode.tool.v1.${name}`),
    ),
  );
  expect(types.has(".opencode.tool.v1.ToolPart")).toBe(false);
});

test("a page that decodes a message gets it without calling an rpc", async () => {
  const { methods, types } = await needsOf("fromBinary(DecisionRecordSchema, bytes).settled;");
  expect([...methods]).toEqual([]);
  expect(types.has(".opencode.tool.v1.PermissionSettled")).toBe(true);
});

test("pruned code exports the same names, and its descriptor has no validation rules", async () => {
  const code = await generated("tool_service");
  const { prune } = await needsOf("tools.getToolPart({});");
  const pruned = prune(code);
  const exported = (text: string) => [...text.matchAll(/^export const (\w+)/gm)].map(([, name]) => name);
  expect(exported(pruned)).toEqual(exported(code));
  expect(pruned).not.toContain("file_buf_validate_validate");
  expect(pruned.length).toBeLessThan(code.length);
  const descriptor = JSON.parse(/fileDesc\(btoa\((".*?[^\\]")\)/.exec(pruned)?.[1] ?? '""');
  expect(descriptor).toContain("GetToolPartRequest");
  expect(descriptor).not.toContain("ExecuteToolRequest");
});

test("the console needs the stream that it watches, but not the rpcs of callers and audits", () => {
  const { methods } = neededContract(gen, [join(root, "src/console"), join(root, "src/view")]);
  expect([...methods]).toEqual(expect.arrayContaining(["WatchMany", "RespondToPermission", "GetServerInfo"]));
  for (const unused of ["ExecuteTool", "WatchPermissions", "ListAudits", "CloseSession"])
    expect(methods.has(unused)).toBe(false);
});

test("the console decodes which steps a permission request has taken, and whom they add", async () => {
  const { prune } = neededContract(gen, [join(root, "src/console"), join(root, "src/view")]);
  const [, descriptor = ""] = /fileDesc\(btoa\((".*?[^\\]")\)/.exec(prune(await generated("permission"))) ?? [];
  for (const field of ["escalations", "requirement", "taken", "channels"]) expect(descriptor).toContain(field);
});

test("a field that the page does not name is dropped with the messages behind it, members of a oneof stay", async () => {
  const { types } = await needsOf("const { parts } = await tools.listToolParts({ sessionId });");
  expect(types.has(".opencode.tool.v1.ToolPart")).toBe(true);
  // ToolPart.state is a oneof.
  expect(types.has(".opencode.tool.v1.ToolStateCompleted")).toBe(true);
  // ToolStateCompleted.attachments is not named.
  expect(types.has(".opencode.tool.v1.FilePart")).toBe(false);
});
