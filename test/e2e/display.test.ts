import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();

/** A command of the agent that may do everything: what is asked all the same. */
async function ask(command: string) {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession({ agent: "free" });
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command } }));
  return { sessionId, stream, asked: await stream.until("permissionAsked") };
}

describe("text of which a person would not see everything is asked, whatever is allowed, and says what it hides:", () => {
  test.each([
    ["a direction override", "echo safe \u202e; x", "echo safe \\u{202e}; x", "changes the direction of text (U+202E)"],
    ["an invisible character", "echo a\u200bb", "echo a\\u{200b}b", "an invisible character (U+200B)"],
    ["a terminal's escape", "echo \u001b[2Kok", "echo \\u{1b}[2Kok", "a control character (U+001B)"],
    ["a carriage return", "echo ok\r", "echo ok\\u{d}", "a control character (U+000D)"],
    ["a tag character", "echo ok\u{e0041}", "echo ok\\u{e0041}", "an invisible character (U+E0041)"],
    ["an odd space", "echo\u00a0ok", "echo\\u{a0}ok", "a space that is not the usual one (U+00A0)"],
  ])("%s", async (_, command, shown, warning) => {
    const { asked } = await ask(command);
    expect(asked.display).toEqual([shown]);
    expect(asked.preview?.command).toBe(shown);
    expect(asked.warnings).toEqual([expect.stringContaining(warning)]);
    expect(asked.offers).toEqual([]);
    expect(asked.decisions).toMatchObject([{ layer: PermissionLayer.ENGINE }]);
  });

  test("padding", async () => {
    const command = `echo ok${" ".repeat(70)}; rm -rf x`;
    const { asked } = await ask(command);
    expect(asked.warnings).toEqual([expect.stringContaining("spaces in a row")]);
  });
});

test("long text is wrapped, and nothing of it is left out", async () => {
  const word = "0123456789".repeat(100);
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const input = { command: `echo ${word}` };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input }));
  const { display, warnings } = await stream.until("permissionAsked");
  const lines = display[0]?.split("\n") ?? [];
  expect(Math.max(...lines.map((line) => line.length))).toBe(160);
  expect(lines.map((line, i) => (i === 0 ? line : line.replace(/^↳ /, ""))).join("")).toBe(input.command);
  expect(warnings).toEqual([]);
});

test("what is hidden runs if a person says so, and is shown in its title, too", async () => {
  const { sessionId, stream, asked } = await ask("echo a\u202eb");
  const person = connect(service, "approver");
  await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply: Reply.ONCE });
  const { state } = await stream.end();
  expect(state.value).toMatchObject({ title: "echo a\\u{202e}b", output: "a\u202eb\n" });
});

test("a patch that deletes a file has that as its risk, and one that changes it has none", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  await writeFile(join(service.workspace, "old.txt"), "old\n");
  await agent.tools.callTool({ sessionId, callId: "r", tool: "read", input: { filePath: "old.txt" } });
  const risksOf = async (callId: string, section: string) => {
    const input = { patchText: `*** Begin Patch\n${section}\n*** End Patch` };
    const stream = read(agent.tools.executeTool({ sessionId, callId, tool: "apply_patch", input }));
    const { risks } = await stream.until("permissionAsked");
    await agent.tools.cancelTool({ sessionId, callId });
    return risks;
  };
  const added = "*** Add File: new.txt\n+new\n";
  expect(await risksOf("d", `${added}*** Delete File: old.txt`)).toMatchObject([
    { kind: RiskKind.DELETE, parts: ["old.txt"] },
  ]);
  expect(await risksOf("u", `${added}*** Update File: old.txt\n@@\n-old\n+new`)).toEqual([]);
});
