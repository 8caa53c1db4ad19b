import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionResponse, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type EventInit, type FakeServer, startFakeServer } from "./fake-server.ts";
import { type Running, startAtTerminal } from "./toolgate.ts";

// Each command is a process of its own, and a busy machine starts them slowly.
vi.setConfig({ testTimeout: 30_000 });

const part = { sessionId: "ses_1", callId: "c1", tool: "edit" };
const pending: EventInit = { case: "part", value: { ...part, state: { case: "pending", value: {} } } };
const completed: EventInit = {
  case: "part",
  value: { ...part, state: { case: "completed", value: { output: "done" } } },
};
const asked: EventInit = {
  case: "permissionAsked",
  value: {
    id: "per_1",
    sessionId: "ses_1",
    permission: "edit",
    patterns: ["a.txt"],
    digest: "digest_1",
    expires: Date.now() + 900_000,
    preview: { diff: "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-old\n+new\n" },
    offers: [
      { id: "off_a", text: "a.txt in this session" },
      { id: "off_b", text: "all files of this project" },
    ],
  },
};
const settled = (outcome: PermissionOutcome, by: string): EventInit => ({
  case: "permissionSettled",
  value: { permissionId: "per_1", outcome, by },
});

let server: FakeServer;
let running: Running;

beforeEach(async () => {
  server = await startFakeServer();
  running = startAtTerminal(["call", "edit", "{}"], { TOOLGATE_URL: server.url, TOOLGATE_DATA: "/nonexistent" });
});

afterEach(async () => {
  running.child.kill();
  await server.close();
});

async function nextReply(typed: string): Promise<PermissionResponse> {
  const reply = once(server.seen, "reply");
  running.child.stdin?.write(typed);
  const [response] = await reply;
  return response;
}

beforeAll(() => {
  const isThere = spawnSync("script", ["--version"]).stdout?.includes("util-linux") ?? false;
  if (!isThere) throw new Error("a pseudo-terminal needs script of util-linux: apt-get install -y bsdutils");
});

describe("an ask at a terminal", () => {
  test("shows the diff in colours and is approved by o", async () => {
    server.log(asked);
    await running.sees("›");
    expect(await nextReply("o\r")).toMatchObject({
      permissionId: "per_1",
      reply: PermissionReply.ONCE,
      expectedDigest: "digest_1",
    });
    server.log(settled(PermissionOutcome.ONCE, "me"), completed);
    const { code, stdout } = await running.finished;
    expect(code).toBe(0);
    expect(stdout).toContain("\x1b[31m-old\x1b[39m");
    expect(stdout).toContain("\x1b[32m+new\x1b[39m");
    expect(stdout).toContain("approved once by me");
  });

  test("saves the offer that is chosen", async () => {
    server.log(asked);
    await running.sees("›");
    running.child.stdin?.write("a\r");
    await running.sees("which of 1 to 2?");
    expect(await nextReply("2\r")).toMatchObject({ reply: PermissionReply.ALWAYS, offerId: "off_b" });
  });

  test("is rejected with advice", async () => {
    server.log(asked);
    await running.sees("›");
    running.child.stdin?.write("r\r");
    await running.sees("what should it do instead?");
    expect(await nextReply("use b.txt\r")).toMatchObject({ reply: PermissionReply.REJECT, message: "use b.txt" });
  });

  test("is not answered by what was typed before it was shown", async () => {
    server.log(pending);
    await running.sees("pending");
    running.child.stdin?.write("o\r");
    await running.sees("o\r\n");
    server.log(asked);
    await running.sees("›");
    expect(await nextReply("r no\r")).toMatchObject({ reply: PermissionReply.REJECT, message: "no" });
    expect(server.replies).toHaveLength(1);
  });

  test("is taken back when somebody else answers", async () => {
    server.log(asked);
    await running.sees("›");
    server.log(settled(PermissionOutcome.ONCE, "alice"), completed);
    const { code, stdout } = await running.finished;
    expect(code).toBe(0);
    expect(stdout).toContain("approved once by alice");
    expect(server.replies).toEqual([]);
  });

  test("lets Ctrl-C cancel the call", async () => {
    server.log(asked);
    await running.sees("›");
    const cancelled = once(server.seen, "cancel");
    running.child.stdin?.write("\x03");
    await cancelled;
    server.log(settled(PermissionOutcome.WITHDRAWN, ""));
    server.log({
      case: "part",
      value: { ...part, state: { case: "error", value: { reason: ToolErrorReason.CANCELLED } } },
    });
    expect(await running.finished).toMatchObject({ code: 4 });
  });

  test("stays open after Ctrl-D, with the command that answers it", async () => {
    server.log(asked);
    await running.sees("›");
    running.child.stdin?.write("\x04");
    await running.sees("toolgate reply per_1 once");
    server.log(settled(PermissionOutcome.ONCE, "alice"), completed);
    expect(await running.finished).toMatchObject({ code: 0 });
  });
});
