import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type JsonValue, toJson } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { isRelease, releasesBefore } from "./releases.ts";

// Made by old-stores/make.ts, each with the code of the commit or release in its name, all of this history; of the commits schemas
// 1, 5, 6, 6, 7 and 7.
const folder = join(import.meta.dirname, "old-stores");
const commits = readdirSync(folder).flatMap((name) => (name.endsWith(".tar.xz") ? name.replace(".tar.xz", "") : []));

/** Report of the old service on its store. */
interface Expected {
  sessionId: string;
  storeId: string;
  permissionIds: string[];
  parts: { callId: string }[];
  events: JsonValue[];
  grants: string[];
}

test("stores of six versions from before the first release, and of each release, are pinned", () => {
  expect(commits.filter((name) => !isRelease(name))).toHaveLength(6);
  expect(commits.filter(isRelease)).toEqual(expect.arrayContaining(releasesBefore("HEAD")));
});

test.each(commits)("the store of %s, which was killed, goes on", async (commit) => {
  const data = await mkdtemp(join(tmpdir(), "toolgate-old-"));
  onTestFinished(() => rm(data, { recursive: true, force: true }));
  execFileSync("tar", ["-xJf", join(folder, `${commit}.tar.xz`), "-C", data]);
  const { sessionId, ...old }: Expected = JSON.parse(readFileSync(join(data, "expected.json"), "utf8"));
  const service = await startService({ flags: ["--data", data] });
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  expect((await agent.tools.getServerInfo({})).storeId).toBe(old.storeId);

  // What had ended is as it was, and the log begins with the same events.
  const { parts } = await agent.tools.listToolParts({ sessionId });
  const unended = ["waits", "runs"];
  const ended = (listed: { callId: string }[]) => listed.filter(({ callId }) => !unended.includes(callId));
  expect(ended(parts).map((part) => toJson(ToolPartSchema, part as never))).toEqual(ended(old.parts));
  const events: SessionEvent[] = [];
  for await (const { event } of agent.tools.watchSession({ sessionId })) {
    if (event) events.push(event);
    if (events.length === old.events.length) break;
  }
  expect(events.map((event) => toJson(SessionEventSchema, event))).toEqual(old.events);
  expect((await person.permissions.listGrants({})).grants.map(({ id }) => id)).toEqual(old.grants);

  // A retry attaches, also with the id of the store; what ran when the service was killed does not run again.
  const bash = (callId: string, command: string, as = "free") => ({
    ...{ sessionId, callId, agent: as, tool: "bash", input: { command }, expectedStoreId: old.storeId },
  });
  const { part } = await agent.tools.callTool(bash("done", "echo done"));
  expect(toJson(ToolPartSchema, part as never)).toEqual(old.parts.find(({ callId }) => callId === "done"));
  expect(await refusal(agent.tools.callTool(bash("done", "echo other")))).toMatchObject({ reason: "CALL_ID_REUSED" });
  const lost = (await agent.tools.callTool(bash("runs", "sleep 60"))).part;
  expect(lost?.state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST } });

  // The open request is asked again before a person answers it, or its call ends if its tool asks for other things by now.
  const waits = bash("waits", "mkdir waited", "build");
  const open = async () => (await person.permissions.listPermissions({ sessionId })).permissions;
  const { part: waited } = await agent.tools.callTool({ ...waits, waitMs: 3_000 });
  for (const { id } of await open()) expect(old.permissionIds).not.toContain(id);
  if (waited?.state.case === "error") {
    expect(await open()).toEqual([]);
    expect(waited.state.value).toMatchObject({ reason: ToolErrorReason.STALE_TOOL, effects: ToolEffects.NONE });
    expect(await readdir(service.workspace)).toEqual([]);
  } else {
    expect(await open()).toMatchObject([{ changed: changes, view: { complete: true } }]);
    for (const { id: permissionId } of await open())
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    expect((await agent.tools.callTool(waits)).part?.state.case).toBe("completed");
    // Placeholders of a sandbox that is being made come and go.
    expect((await readdir(service.workspace)).filter((path) => !path.startsWith("."))).toEqual(["waited"]);
  }
  expect((await agent.tools.callTool(bash("new", "echo new"))).part?.state.case).toBe("completed");
});

const changes = expect.stringMatching(/^(the tool has changed since|Toolgate was upgraded)$/);
