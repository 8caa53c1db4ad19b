import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { programEntry } from "../main.ts";
import { clientOf } from "./clients.ts";
import { createHookHome } from "./hook-process.ts";
import { hostTokens } from "./host.ts";
import { createService } from "./service.ts";

const rules = '[permission.bash]\n"echo *" = "allow"\n"rm *" = "deny"\n';
const service = createService({ settings: `${rules}${hostTokens}` });
beforeAll(service.start);
afterAll(service.close);
const permissions = () => clientOf(PermissionService, service.url, "approver-token-for-tests");

/** Connects to `toolgate mcp-approve claude` as Claude Code does. */
async function connectPrompt(server = service.url) {
  const { home, tokenFile } = createHookHome("host-token-for-tests");
  const flags = ["--server", server, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [programEntry(), "mcp-approve", "claude", ...flags],
    cwd: service.workspace,
    env: { PATH: process.env.PATH ?? "", HOME: home },
  });
  const client = new Client({ name: "claude-code", version: "2" });
  await client.connect(transport);
  onTestFinished(() => client.close());
  /** Sends a prompt; returns the JSON of its one text item. */
  const ask = async (
    command: string,
    useId: string,
    meta: Record<string, unknown> = { "claudecode/toolUseId": useId },
  ) => {
    const { content } = await client.callTool({
      name: "approve",
      arguments: { tool_name: "Bash", input: { command }, tool_use_id: useId },
      _meta: meta,
    });
    expect(content).toEqual([{ type: "text", text: expect.any(String) }]);
    const [item] = content as { text: string }[];
    return JSON.parse(item?.text ?? "");
  };
  return { client, ask };
}

test("the only tool is approve; rules allow and deny without a person", async () => {
  const { client, ask } = await connectPrompt();
  expect((await client.listTools()).tools.map(({ name }) => name)).toEqual(["approve"]);
  expect(await ask("echo hi", "toolu_1")).toEqual({ behavior: "allow", updatedInput: { command: "echo hi" } });
  expect(await ask("rm -rf build", "toolu_2")).toEqual({ behavior: "deny", message: expect.stringContaining("rm") });
});

test("an approver answers a prompt, and may edit it", async () => {
  const { ask } = await connectPrompt();
  const waiting = ask("make", "toolu_3");
  for await (const { event } of permissions().watchPermissions({})) {
    if (event?.event.case !== "permissionAsked") continue;
    const { id: permissionId, sessionId } = event.event.value;
    const input = { command: "echo dry" };
    await permissions().respondToPermission({ permissionId, sessionId, reply: PermissionReply.ONCE, input });
    break;
  }
  expect(await waiting).toEqual({ behavior: "allow", updatedInput: { command: "echo dry" } });
});

test.each([
  ["without the id of the use in _meta", {}],
  ["with the id of another use there", { "claudecode/toolUseId": "toolu_other" }],
])("a model that calls approve by itself %s is refused", async (_name, meta) => {
  const { ask } = await connectPrompt();
  expect(await ask("echo hi", "toolu_4", meta)).toEqual({
    behavior: "deny",
    message: expect.stringContaining("only Claude Code itself may ask here"),
  });
});

test("the 21st prompt that waits is refused", async () => {
  const { ask } = await connectPrompt();
  const waiting = Array.from({ length: 20 }, (_, i) => ask(`make ${i}`, `toolu_w${i}`));
  const open = new Set<string>();
  for await (const { event } of permissions().watchPermissions({})) {
    if (event?.event.case === "permissionAsked") open.add(event.event.value.sessionId + event.event.value.id);
    if (open.size === 20) break;
  }
  expect(await ask("make last", "toolu_last")).toMatchObject({ message: expect.stringContaining("20 prompts") });
  const { permissions: requests } = await permissions().listPermissions({ pageSize: 100 });
  const [{ sessionId } = { sessionId: "" }] = requests;
  await permissions().rejectPermissions({ sessionId, message: "no" });
  expect(await Promise.all(waiting)).toEqual(
    Array(20).fill({ behavior: "deny", message: expect.stringContaining("no") }),
  );
  expect(await ask("echo again", "toolu_again")).toMatchObject({ behavior: "allow" });
});

test("a service that is away denies", async () => {
  const { ask } = await connectPrompt("http://127.0.0.1:9");
  expect(await ask("echo hi", "toolu_5")).toEqual({
    behavior: "deny",
    message: expect.stringContaining("no service answers"),
  });
});
