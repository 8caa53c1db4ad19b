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
