/**
 * Shows the main job in a temporary workspace: a call that policy allows, one that a person (here a second client)
 * approves, and one that is rejected with advice. Both clients speak native gRPC.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { styleText } from "node:util";
import { createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import type { SessionEvent } from "../gen/opencode/tool/v1/event_pb.ts";
import { PermissionService } from "../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionRequest } from "../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";

const folder = await mkdtemp(join(tmpdir(), "toolgate-demo-"));
const workspace = join(folder, "workspace");
const config = join(folder, "toolgate.toml");
await mkdir(workspace);
await writeFile(join(workspace, "notes.txt"), "Buy milk.\n");
await writeFile(config, '[permission.bash]\n"ls *" = "allow"\n');

const service = spawn(
  process.execPath,
  [
    "src/main.ts",
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--workspace",
    workspace,
    "--data",
    join(folder, "data"),
    "--config",
    config,
  ],
  { cwd: join(import.meta.dirname, ".."), stdio: ["ignore", "ignore", "pipe"] },
);
try {
  await show(await address(service));
} finally {
  service.kill("SIGTERM");
  if (service.exitCode === null) await once(service, "exit");
  await rm(folder, { recursive: true, force: true });
}

async function show(url: string): Promise<void> {
  const agent = await clients(url, "caller");
  const person = await clients(url, "approver");
  const sessionId = "ses_demo";
  await agent.sessions.createSession({ sessionId, title: "Demo" });
  say("bold", `\nToolgate runs at ${url}, workspace ${workspace}`);

  say("bold", '\n1. The agent lists files. Policy allows it:  [permission.bash] "ls *" = "allow"');
  await call("call_1", "bash", { command: "ls -l", description: "List the files" });

  say("bold", "\n2. The agent overwrites a file. It has to read it first; the write asks, and a person approves.");
  await call("call_2", "read", { filePath: "notes.txt" });
  await call("call_3", "write", { filePath: "notes.txt", content: "Buy milk.\nAnd bread.\n" }, async (ask) => {
    say("yellow", `   the person sees:\n${indent(ask.preview?.diff ?? "")}`);
    await person.permissions.respondToPermission({
      sessionId,
      permissionId: ask.id,
      reply: PermissionReply.ONCE,
      expectedDigest: ask.digest,
    });
    say("yellow", "   the person answers: once");
  });
  say("dim", indent(await readFile(join(workspace, "notes.txt"), "utf8")));

  say("bold", "\n3. The agent wants to delete everything. A person rejects it, with advice.");
  await call("call_4", "bash", { command: "rm -rf notes.txt", description: "Remove the notes" }, async (ask) => {
    say("yellow", `   the person sees: ${ask.preview?.command}`);
    const message = "Keep the notes; move them to archive/ instead.";
    await person.permissions.respondToPermission({
      sessionId,
      permissionId: ask.id,
      reply: PermissionReply.REJECT,
      message,
    });
    say("yellow", `   the person answers: reject, "${message}"`);
  });

  say(
    "bold",
    "\nThat was it. Next: npm start, then in a second terminal\n" +
      `  npm run -s toolgate -- call bash '{"command": "date", "description": "Tell the time"}'\n`,
  );

  /** Executes a tool and prints each event as it comes; `answer` is what the person does when asked. */
  async function call(
    callId: string,
    tool: string,
    input: Record<string, string>,
    answer?: (ask: PermissionRequest) => Promise<void>,
  ) {
    for await (const { event } of agent.tools.executeTool({ sessionId, callId, tool, input })) {
      if (event) print(event);
      if (event?.event.case === "permissionAsked") await answer?.(event.event.value);
    }
  }
}

async function clients(url: string, role: "caller" | "approver") {
  const token = (await readFile(join(folder, "data", "tokens", role), "utf8")).trim();
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const transport = createGrpcTransport({ baseUrl: url, interceptors: [authorize] });
  return {
    tools: createClient(ToolService, transport),
    sessions: createClient(SessionService, transport),
    permissions: createClient(PermissionService, transport),
  };
}

function print({ seq, event }: SessionEvent): void {
  const line = (text: string) => say("cyan", `   #${seq} ${text}`);
  if (event.case === "permissionAsked") line(`asks: ${event.value.permission} ${event.value.patterns.join(" ")}`);
  if (event.case === "permissionSettled") line(`answered by ${event.value.by}`);
  if (event.case === "output") line(`output\n${indent(Buffer.from(event.value.data).toString())}`);
  if (event.case !== "part") return;
  const { tool, state } = event.value;
  line(`${state.case} ${tool}`);
  if (state.case === "completed" && tool !== "bash") say("dim", indent(state.value.output));
  if (state.case === "error") say("red", indent(state.value.error));
}

/** Where the service says it is. */
async function address({ stderr }: Pick<ChildProcess, "stderr">): Promise<string> {
  if (!stderr) throw new Error("the service has no stderr");
  const said: string[] = [];
  for await (const line of createInterface({ input: stderr })) {
    said.push(line);
    const url = / is at .*?(http:\/\/[0-9.:]+)/.exec(line)?.[1];
    if (url === undefined) continue;
    stderr.resume();
    return url;
  }
  throw new Error(`the service did not start:\n${said.join("\n")}`);
}

function indent(text: string): string {
  return text.trimEnd().replaceAll(/^/gm, "     ");
}

function say(style: "bold" | "dim" | "yellow" | "cyan" | "red", text: string): void {
  console.log(styleText(style, text, { stream: process.stdout }));
}
