import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionResponse, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type EventInit, type FakeServer, refused, startFakeServer } from "./fake-server.ts";
import { type RunningProcess, startAtTerminal } from "./toolgate.ts";

const part = { sessionId: "ses_1", callId: "c1", tool: "edit" };
const pending: EventInit = { case: "part", value: { ...part, state: { case: "pending", value: {} } } };
const completed: EventInit = {
  case: "part",
  value: { ...part, state: { case: "completed", value: { output: "done" } } },
};
const asked = {
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
} satisfies EventInit;
const settled = (outcome: PermissionOutcome, by: string): EventInit => ({
  case: "permissionSettled",
  value: { permissionId: "per_1", outcome, by },
});

let server: FakeServer;
let running: RunningProcess;
let folder: string;
/** Error for the next answer. */
let refusal: Error | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-terminal-"));
  refusal = undefined;
  server = await startFakeServer({
    tools: {
      getToolPart: () => ({ part: { state: { case: "pending", value: { input: { path: "a.txt\u202e" } } } } }),
      readToolOutput: () => ({ data: Buffer.from("+first\n+the\u202e last\n"), end: true }),
    },
    permissions: {
      respondToPermission(response) {
        server.replies.push(response);
        server.seen.emit("reply", response);
        const refusing = refusal;
        refusal = undefined;
        if (refusing) throw refusing;
        return {};
      },
    },
  });
  running = startAtTerminal(["call", "edit", "{}"], {
    TOOLGATE_URL: server.url,
    TOOLGATE_DATA: "/nonexistent",
    EDITOR: join(folder, "editor"),
  });
});

afterEach(async () => {
  running.child.kill();
  await server.close();
  await rm(folder, { recursive: true });
});

/** Makes an editor that writes this, if what it is given hides nothing. */
async function editorThatWrites(text: string): Promise<void> {
  const editor = join(folder, "editor");
  await writeFile(editor, `#!/bin/sh\ngrep -q '\\\\u202e' "$1" && echo '${text}' > "$1"\n`);
  await chmod(editor, 0o755);
}

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

test("without a sign-in, call at a terminal prints the link to the request and waits for an answer elsewhere", async () => {
  const unsigned = startAtTerminal(["call", "edit", "{}"], {
    TOOLGATE_URL: server.url,
    TOOLGATE_TOKEN: "caller-secret",
    XDG_CONFIG_HOME: "/nonexistent",
  });
  server.log(asked);
  await unsigned.sees(`${server.url}/r/per_1`);
  server.log(settled(PermissionOutcome.ONCE, "ann"), completed);
  const { code, stdout } = await unsigned.finished;
  expect(code).toBe(0);
  expect(stdout).toContain("approved once by ann");
  expect(stdout).not.toContain("›");
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
    await running.sees("advice for the agent");
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

  test("is approved by no key in the first half second that it is on the screen", async () => {
    const before = performance.now();
    server.log(asked);
    await running.sees("all files of this project");
    const reply = once(server.seen, "reply");
    running.child.stdin?.write("o\r");
    // On a machine so slow that the key came later than that, it is the answer.
    await Promise.race([reply, running.sees("›")]);
    running.child.stdin?.write("o\r");
    await reply;
    expect(performance.now() - before).toBeGreaterThan(499);
  });

  test("is not approved by pasted text, neither as the answer nor as the offer", async () => {
    server.log(asked);
    await running.sees("›");
    running.child.stdin?.write("\x1b[200~o\r\x1b[201~");
    await running.sees("pasted text approves nothing", "›");
    running.child.stdin?.write("a\r");
    await running.sees("which of 1 to 2?");
    running.child.stdin?.write("\x1b[200~2\r\x1b[201~");
    await running.sees("pasted text approves nothing", "pasted text approves nothing", "›");
    expect(await nextReply("r no\r")).toMatchObject({ reply: PermissionReply.REJECT });
    expect(server.replies).toHaveLength(1);
  });

  test("has the arguments changed in the editor, where nothing in them is hidden", async () => {
    await editorThatWrites('{"path": "b.txt"}');
    server.log(asked);
    await running.sees("›");
    expect(await nextReply("e\r")).toMatchObject({
      permissionId: "per_1",
      reply: PermissionReply.ONCE,
      expectedDigest: "digest_1",
      input: { path: "b.txt" },
    });
    server.log(settled(PermissionOutcome.EDITED, "me"), completed);
    await running.sees("✓ edited by me");
    expect(await running.finished).toMatchObject({ code: 0 });
  });

  test("is asked again when the edited arguments are no JSON, or do not fit", async () => {
    await editorThatWrites("nonsense");
    server.log(asked);
    await running.sees("›");
    running.child.stdin?.write("e\r");
    await running.sees("the edited input is not JSON", "next:", "›");
    await editorThatWrites("{}");
    refusal = refused(Code.InvalidArgument, "INVALID_INPUT", "path is missing", { tool: "edit" });
    await nextReply("e\r");
    await running.sees("path is missing", "next:", "›");
    expect(await nextReply("o\r")).toMatchObject({ reply: PermissionReply.ONCE });
  });

  test("of which only a part is shown is approved after the whole change was", async () => {
    server.log({
      ...asked,
      value: { ...asked.value, preview: { diff: "+first\n", url: "toolgate-output:out_1" } },
    });
    await running.sees("the whole is toolgate-output:out_1", "whole request", "›");
    const notice = "only a part of it is shown";
    running.child.stdin?.write("o\r");
    await running.sees(notice, "›");
    running.child.stdin?.write("a\r");
    await running.sees(notice, notice, "›");
    running.child.stdin?.write("w\r");
    await running.sees("+the\\u202e last", "once", "›");
    expect(server.replies).toEqual([]);
    expect(await nextReply("o\r")).toMatchObject({ reply: PermissionReply.ONCE });
  });

  test("is withdrawn after an answer from elsewhere", async () => {
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
