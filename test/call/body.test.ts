import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  ToolEffects,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { ChangedAfterApproval, ToolFailure } from "../../src/tool/errors.ts";
import type { ToolContext, ToolResult } from "../../src/tool/tool.ts";
import { serve } from "./server.ts";

/** Defines a tool without asks, with the body of a test. */
function tool(execute: (ctx: ToolContext) => Promise<ToolResult> | ToolResult) {
  return defineTool({
    name: "probe",
    description: "Does what the test says.",
    input: z.object({}),
    plan: () => ({ title: "probe", asks: [] }),
    execute: (_input, ctx) => execute(ctx),
  });
}

/** Executes the probe to its end; `onAsk` answers permission requests. */
async function run({ agent }: Awaited<ReturnType<typeof serve>>, onAsk?: (ask: PermissionRequest) => Promise<unknown>) {
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  const events: SessionEvent[] = [];
  for await (const { event } of agent.tools.executeTool({ sessionId, callId: "c1", tool: "probe", input: {} })) {
    if (event) events.push(event);
    if (event?.event.case === "permissionAsked") await onAsk?.(event.event.value);
  }
  const last = events.at(-1)?.event;
  if (last?.case !== "part") throw new Error("the call has no end");
  return { state: last.value.state, events };
}

describe("the body of a call", () => {
  test("that throws an unexpected error ends FAILED; only the log has the cause", async () => {
    const service = await serve([
      tool(() => {
        throw new TypeError("password is hunter2");
      }),
    ]);
    const { state } = await run(service);
    expect(state).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.FAILED, effects: ToolEffects.UNKNOWN },
    });
    expect(JSON.stringify(state.value)).not.toContain("hunter2");
    expect(service.logged).toContainEqual({
      message: "defect in a tool call",
      fields: { error: new TypeError("password is hunter2"), callId: "c1", sessionId: "ses_test", tool: "probe" },
    });
  });

  test("that fails with ToolFailure reports its message and logs nothing", async () => {
    const service = await serve([
      tool(() => {
        throw new ToolFailure("The printer is out of paper.");
      }),
    ]);
    expect((await run(service)).state.value).toMatchObject({
      reason: ToolErrorReason.FAILED,
      error: "The printer is out of paper.",
    });
    expect(service.logged.map(({ message }) => message)).not.toContain("defect in a tool call");
  });

  test("that finds another file than was approved ends CHANGED_AFTER_APPROVAL without effects", async () => {
    const service = await serve([
      tool(() => {
        throw new ChangedAfterApproval("a.txt has changed.");
      }),
    ]);
    expect((await run(service)).state.value).toMatchObject({
      reason: ToolErrorReason.CHANGED_AFTER_APPROVAL,
      effects: ToolEffects.NONE,
    });
  });

  test("emits progress, and the terminal part has the last one", async () => {
    const emitted = Promise.withResolvers<void>();
    const service = await serve([
      tool(async ({ metadata }) => {
        metadata({ title: "half done", metadata: { percent: 50 } });
        await emitted.promise;
        return { output: "done" };
      }),
    ]);
    const sessionId = "ses_test";
    await service.agent.sessions.createSession({ sessionId });
    for await (const { event } of service.agent.tools.executeTool({
      sessionId,
      callId: "c1",
      tool: "probe",
      input: {},
    })) {
      if (event?.event.case === "progress") {
        expect(event.event.value).toMatchObject({ callId: "c1", title: "half done", metadata: { percent: 50 } });
        emitted.resolve();
      }
      if (event?.event.case !== "part" || event.event.value.state.case !== "completed") continue;
      expect(event.event.value.state.value).toMatchObject({
        title: "half done",
        metadata: { percent: 50, truncated: false },
      });
    }
  });

  test("that shows more metadata than an event holds fails with advice and keeps its replica", async () => {
    const service = await serve([
      tool(({ metadata }) => {
        metadata({ title: "before" });
        metadata({ metadata: { page: "x".repeat(1_500_000) } });
        return { output: "done" };
      }),
    ]);
    expect((await run(service)).state.value).toMatchObject({
      reason: ToolErrorReason.FAILED,
      error: expect.stringMatching(/have 15000\d\d bytes; at most 262144 are possible/),
    });
  });

  test("that fails with a long text shows both ends of it, and the whole text can be read", async () => {
    const long = `begin ${"x".repeat(1_500_000)} end`;
    const service = await serve([
      tool(() => {
        throw new ToolFailure(long);
      }),
    ]);
    const { state } = await run(service);
    const error = state.case === "error" ? state.value.error : "";
    expect(error.length).toBeLessThan(52_000);
    const [, output = ""] = /^begin x+[\s\S]*filePath "([^"]+)"[\s\S]*x end$/.exec(error) ?? [];
    const { totalBytes } = await service.agent.tools.readToolOutput({ sessionId: "ses_test", output });
    expect(totalBytes).toBe(BigInt(long.length));
  });

  test("gets the ids, agent, model and metadata of its call", async () => {
    const seen = Promise.withResolvers<ToolContext>();
    const service = await serve([
      tool((ctx) => {
        seen.resolve(ctx);
        return { output: "" };
      }),
    ]);
    const sessionId = "ses_test";
    await service.agent.sessions.createSession({ sessionId });
    const call = {
      sessionId,
      messageId: "m1",
      callId: "c1",
      tool: "probe",
      input: {},
      providerId: "acme",
      modelId: "m-1",
    };
    await service.agent.tools.callTool({ ...call, metadata: { colour: "red" } });
    expect(await seen.promise).toMatchObject({
      sessionId,
      messageId: "m1",
      callId: "c1",
      agent: "build",
      model: { providerId: "acme", modelId: "m-1" },
      extra: { colour: "red" },
    });
  });

  test("returns a large attachment by URL, and its whole content can be read", async () => {
    const data = Buffer.alloc(200_000, "x");
    const service = await serve([
      tool(() => ({ output: "", attachments: [{ mime: "text/plain", filename: "x.txt", data }] })),
    ]);
    const { state } = await run(service);
    const [attachment] = state.case === "completed" ? state.value.attachments : [];
    expect(attachment).toMatchObject({ type: "file", mime: "text/plain", filename: "x.txt", size: 200_000n });
    const read = await service.agent.tools.readToolOutput({ sessionId: "ses_test", output: attachment?.url ?? "" });
    expect(Buffer.from(read.data).equals(data)).toBe(true);
  });
});

describe("an ask in the body", () => {
  const asking = (done: () => void = () => undefined) =>
    tool(async ({ ask }) => {
      await ask({ permission: "probe", patterns: ["the door"] });
      done();
      return { output: "opened" };
    });

  test("that is approved lets the body go on", async () => {
    const service = await serve([asking()]);
    const { state } = await run(service, ({ id: permissionId, sessionId }) =>
      service.person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE }),
    );
    expect(state.value).toMatchObject({ output: "opened" });
  });

  test("that is rejected ends the call with the feedback, even if the tool catches it", async () => {
    const service = await serve([
      tool(async ({ ask }) => {
        await ask({ permission: "probe", patterns: ["the door"] }).catch(() => undefined);
        return { output: "opened all the same" };
      }),
    ]);
    const { state } = await run(service, ({ id: permissionId, sessionId }) =>
      service.person.permissions.respondToPermission({
        sessionId,
        permissionId,
        reply: PermissionReply.REJECT,
        message: "Use the window.",
      }),
    );
    expect(state.value).toMatchObject({
      reason: ToolErrorReason.REJECTED,
      error: expect.stringContaining("Use the window."),
    });
  });

  test("that expires ends the call EXPIRED", async () => {
    const entered: string[] = [];
    const service = await serve([asking(() => entered.push("opened"))], { askMs: 200 });
    expect((await run(service)).state.value).toMatchObject({ reason: ToolErrorReason.EXPIRED });
    expect(entered).toEqual([]);
  });

  test("without patterns asks and is not allowed by a rule", async () => {
    const service = await serve([
      tool(async ({ ask }) => {
        await ask({ permission: "read", patterns: [] });
        return { output: "read" };
      }),
    ]);
    const { state } = await run(service, ({ id: permissionId, sessionId }) =>
      service.person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT }),
    );
    expect(state.value).toMatchObject({ reason: ToolErrorReason.REJECTED });
  });
});

test("the input of a running call cannot be edited; its ask stays open", async () => {
  const service = await serve([
    tool(async ({ ask }) => {
      await ask({ permission: "probe", patterns: ["the door"] });
      return { output: "open" };
    }),
  ]);
  const { state } = await run(service, async ({ sessionId, id: permissionId }) => {
    const answer = { sessionId, permissionId, reply: PermissionReply.ONCE };
    const edit = service.person.permissions.respondToPermission({ ...answer, input: { other: 1 } });
    await expect(edit).rejects.toThrow(/whose arguments are in use/);
    await service.person.permissions.respondToPermission(answer);
  });
  expect(state.case).toBe("completed");
});

describe("an approval is bound to what runs", () => {
  /** Runs script.sh: the plan binds the approval to its content. */
  const script = (ran: string[]) =>
    defineTool({
      name: "probe",
      description: "Runs script.sh.",
      input: z.object({}),
      plan: async (_input, { workspace }) => ({
        title: "script.sh",
        asks: [{ permission: "probe", patterns: ["script.sh"] }],
        binds: [await workspace.resolve("script.sh")],
      }),
      execute: () => {
        ran.push("script.sh");
        return { output: "ran" };
      },
    });

  test("a file that changes while its request is open is asked about again; the first approval does not count", async () => {
    const ran: string[] = [];
    const service = await serve([script(ran)]);
    const file = join(service.workspace, "script.sh");
    await writeFile(file, "echo harmless");
    const digests: string[] = [];
    const { state, events } = await run(service, async ({ id: permissionId, sessionId, digest }) => {
      digests.push(digest);
      if (digests.length === 1) await writeFile(file, "rm -rf /");
      await service.person.permissions.respondToPermission({
        sessionId,
        permissionId,
        reply: digests.length === 1 ? PermissionReply.ONCE : PermissionReply.REJECT,
        expectedDigest: digest,
      });
    });
    expect(new Set(digests).size).toBe(2);
    expect(ran).toEqual([]);
    expect(state.value).toMatchObject({ reason: ToolErrorReason.REJECTED, effects: ToolEffects.NONE });
    const outcomes = events.flatMap(({ event }) => (event.case === "permissionSettled" ? [event.value.outcome] : []));
    expect(outcomes).toEqual([PermissionOutcome.ONCE, PermissionOutcome.REJECT]);
  });

  test("an unchanged file runs on the first approval", async () => {
    const ran: string[] = [];
    const service = await serve([script(ran)]);
    await writeFile(join(service.workspace, "script.sh"), "echo harmless");
    await run(service, ({ id: permissionId, sessionId }) =>
      service.person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE }),
    );
    expect(ran).toEqual(["script.sh"]);
  });
});

describe("a preview", () => {
  const previewing = (diff: string) =>
    defineTool({
      name: "probe",
      description: "Shows a diff.",
      input: z.object({}),
      plan: () => ({
        title: "probe",
        asks: [{ permission: "probe", patterns: ["x"] }],
        inspect: async () => ({ preview: () => ({ diff, command: "echo \u202Egpj.exe" }) }),
      }),
      execute: () => ({ output: "" }),
    });

  test("shows invisible characters and those that reorder text", async () => {
    const service = await serve([previewing("+a\u200Bb\u001B[2J\tc\n")]);
    const { promise, resolve } = Promise.withResolvers<PermissionRequest>();
    await run(service, (ask) => {
      resolve(ask);
      return service.person.permissions.respondToPermission({
        sessionId: ask.sessionId,
        permissionId: ask.id,
        reply: PermissionReply.ONCE,
      });
    });
    expect((await promise).preview).toMatchObject({
      diff: "+a\\u{200b}b\\u{1b}[2J\tc\n",
      command: "echo \\u{202e}gpj.exe",
    });
  });

  test("over 128 KiB is cut in the request, which names the whole diff", async () => {
    const diff = "+a line of the diff\n".repeat(20_000);
    const service = await serve([previewing(diff)]);
    await run(service, async ({ id: permissionId, sessionId, preview }) => {
      expect(diff.startsWith(preview?.diff ?? "-")).toBe(true);
      expect(Buffer.byteLength(preview?.diff ?? "")).toBeLessThanOrEqual(128 * 1024);
      const whole = await service.person.tools.readToolOutput({ sessionId, output: preview?.url ?? "" });
      expect(Buffer.from(whole.data).toString()).toBe(diff);
      await service.person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    });
  });
});
