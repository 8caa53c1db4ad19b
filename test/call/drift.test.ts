import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import * as z from "zod";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  PermissionResponseSchema,
  ToolEffects,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Principal } from "../../src/core/principal.ts";
import { workspaceRoot } from "../../src/core/workspace-root.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { agent } from "../model/clients.ts";
import { startReplicas } from "../model/replicas.ts";
import { inSqlite } from "../model/stores.ts";

const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };
const request = create(CallToolRequestSchema, { sessionId: "ses_a", callId: "call_1", tool: "deploy" });

/** Runs a call that is approved for one version of its tool, at a service that restarts with another version. */
async function approvedOver(restart: { version: string }) {
  const entries: string[] = [];
  const versions = ["1", restart.version];
  const replicas = await startReplicas(
    { newContents: inSqlite, pace: [0] },
    {
      toolsOf() {
        const version = versions.shift() ?? "";
        return [
          defineTool({
            name: "deploy",
            description: "Deploys.",
            input: z.object({}),
            version,
            plan: () => ({ title: "deploy", asks: [{ permission: "deploy", patterns: ["production"] }] }),
            execute() {
              entries.push(version);
              return { output: "deployed" };
            },
          }),
        ];
      },
      onNews() {},
    },
  );
  const [first = ""] = replicas.names();
  await replicas.at(first).sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  const { record } = await replicas.at(first).calls.open(agent, request);
  const ask = async () => (await replicas.any().store.permissions.asksOf(record.ref))[0]?.request.id;
  await expect.poll(ask).toBeDefined();
  await replicas.kill(first);
  const { sessions, calls } = replicas.any();
  const { session } = await sessions.open(person, "ses_a", "read");
  const answer = { sessionId: "ses_a", permissionId: (await ask()) ?? "", reply: PermissionReply.ONCE };
  await calls.answer(person, workspaceRoot(session.workspace), create(PermissionResponseSchema, answer));
  await calls.recover();
  await replicas.outliveTheDead();
  await calls.recover();
  const { part } = await calls.wait(record, 10_000, new AbortController().signal);
  await replicas.stop();
  return { part, entries };
}

test("a call approved for one definition of a tool is not run by another definition", async () => {
  const { part, entries } = await approvedOver({ version: "2" });
  expect(part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.NONE },
  });
  expect(entries).toEqual([]);
});

test("a call approved before a restart is run once by the same definition", async () => {
  const { part, entries } = await approvedOver({ version: "1" });
  expect(part.state).toMatchObject({ case: "completed", value: { output: "deployed" } });
  expect(entries).toEqual(["1"]);
});
