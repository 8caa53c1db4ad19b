import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { expect, test } from "vitest";
import { GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService();
const agent = () => connect(service, "caller");
const git = (...args: string[]) => execFileSync("git", ["-C", service.workspace, ...args], { encoding: "utf8" }).trim();
const call = (sessionId: string, callId: string, command: string) =>
  read(agent().tools.executeTool({ sessionId, callId, agent: "free", tool: "bash", input: { command } }));

test("one answer lets the commands of a session change the settings of a repository, and nothing else that is protected", async () => {
  git("init", "-q", "-b", "main");
  const sessionId = await agent().newSession();
  const adding = call(sessionId, "c1", "git remote add origin https://example.com/a.git");
  const asked = await adding.until("permissionAsked");
  expect(asked).toMatchObject({ permission: "edit", patterns: [".git/config"] });
  expect(asked.offers.map(({ scope, text }) => [scope, text])).toEqual([
    [GrantScope.SESSION, 'Allow edit ".git/config" in this session and its children'],
  ]);
  const { id: permissionId, offers } = asked;
  const reply = { reply: PermissionReply.ALWAYS, offerId: offers[0]?.id ?? "" };
  await connect(service, "approver").permissions.respondToPermission({ sessionId, permissionId, ...reply });
  expect((await adding.end()).state.value).toMatchObject({ metadata: { exit: 0 } });

  const commands = ["git config user.name A", "git remote set-url origin https://example.com/b.git"];
  for (const [i, command] of commands.entries())
    expect((await call(sessionId, `d${i}`, command).end()).state.value).toMatchObject({ metadata: { exit: 0 } });
  expect([git("config", "user.name"), git("remote", "get-url", "origin")]).toEqual(["A", "https://example.com/b.git"]);

  // Another protected file asks again and offers nothing, and so does the same one in another session or for another tool.
  const hook = await call(sessionId, "e1", "echo X > .git/hooks/pre-commit").until("permissionAsked");
  expect([hook.patterns, hook.offers]).toEqual([[".git/hooks/pre-commit"], []]);
  const both = await call(sessionId, "e2", "git config a.b c; echo X > .npmrc").until("permissionAsked");
  expect([both.patterns.includes(".npmrc"), both.offers]).toEqual([true, []]);
  const other = await call(await agent().newSession(), "e3", "git config user.name B").until("permissionAsked");
  expect(other.patterns).toEqual([".git/config"]);
  const write = { filePath: join(service.workspace, "sub/.git/config"), content: "" };
  const writing = read(
    agent().tools.executeTool({ sessionId, callId: "e4", agent: "free", tool: "write", input: write }),
  );
  expect((await writing.until("permissionAsked")).offers).toEqual([]);
});
