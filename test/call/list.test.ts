import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { toBinary } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ListToolPartsResponseSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { serve } from "./server.ts";

test("a page of calls ends before it is too large to hold, and the pages together are whole", async () => {
  const { agent } = await serve([]);
  const { session } = await agent.sessions.createSession({});
  const sessionId = session?.id ?? "";
  const textOf = (callId: string) => callId.padEnd(500_000, "x");
  const made = Array.from({ length: 45 }, (_, index) => `call_${index}`);
  for (const callId of made)
    await agent.tools.callTool({ sessionId, callId, tool: "echo", input: { text: textOf(callId) } });
  const listed: string[] = [];
  const sizes: number[] = [];
  for (let pageToken = ""; sizes.length === 0 || pageToken !== ""; ) {
    const page = await agent.tools.listToolParts({ sessionId, pageSize: 500, pageToken });
    listed.push(...page.parts.map(({ callId }) => callId));
    sizes.push(toBinary(ListToolPartsResponseSchema, page).byteLength);
    pageToken = page.nextPageToken;
  }
  expect(listed).toEqual(made);
  expect(Math.max(...sizes)).toBeLessThan(16 * 1024 * 1024);
});

test("a page goes on after a call that was removed since the page before", async () => {
  const { agent, close, restart, workspace } = await serve([]);
  const { session } = await agent.sessions.createSession({});
  const sessionId = session?.id ?? "";
  for (const callId of ["call_c", "call_b", "call_a"])
    await agent.tools.callTool({ sessionId, callId, tool: "echo", input: { text: callId } });
  const first = await agent.tools.listToolParts({ sessionId, pageSize: 2 });
  await close();
  const db = new DatabaseSync(join(workspace, "../data/toolgate.sqlite"));
  db.exec("DELETE FROM calls WHERE call_id = 'call_b'");
  db.close();
  const { tools } = (await restart()).agent;
  const { parts, nextPageToken } = await tools.listToolParts({ sessionId, pageToken: first.nextPageToken });
  expect([...first.parts, ...parts].map(({ callId }) => callId)).toEqual(["call_c", "call_b", "call_a"]);
  expect(nextPageToken).toBe("");
});
