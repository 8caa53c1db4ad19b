import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { SandboxState } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { isCheckout } from "../../core/assets.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { ReplyAnswer } from "../connection/send-reply.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { type DemoAnswers, showRequest } from "./answers.ts";
import { indented } from "./lines.ts";

const sessionId = "ses_demo";
const approval: ReplyAnswer = { reply: PermissionReply.ONCE };
const inactive: readonly SandboxState[] = [SandboxState.OFF, SandboxState.UNAVAILABLE];

/** The agent's connection, and who answers its permission requests: the script, or a person for one of them. */
export interface Demo {
  agent: ServerConnection;
  answers: { automatic: DemoAnswers; person: DemoAnswers };
  screen: Screen;
  workspace: string;
  /** Ends the demo early. */
  signal: AbortSignal;
}

/** Shows three calls of an agent: one that policy allows, one that is approved, and one that is rejected with advice. */
export async function showDemo(demo: Demo): Promise<void> {
  const { agent, answers, screen, workspace } = demo;
  const { out } = screen.paint;
  const say = (text: string) => {
    if (!screen.json) screen.write(`${text}\n`);
  };
  await agent.sessions.createSession({ sessionId, title: "Demo" });
  say(out("bold", `\nToolgate runs at ${agent.url}, workspace ${workspace}`));
  const { sandbox, sandboxProblem } = await agent.tools.getServerInfo({});
  if (inactive.includes(sandbox)) say(`sandbox: not active${sandboxProblem === "" ? "" : ` (${sandboxProblem})`}`);

  const isConfined = sandbox !== SandboxState.UNAVAILABLE;
  const also = isConfined ? "" : "\n   Without a sandbox each command asks all the same, so a person approves.";
  say(out("bold", `\n1. The agent lists files. Policy allows it:  [permission.bash] "ls *" = "allow"${also}`));
  const list = { command: "ls -l", description: "List the files" };
  await showCall(demo, { callId: "call_1", tool: "bash", input: list }, answers.automatic, approval);

  say(out("bold", "\n2. The agent overwrites a file. It has to read it first; the write asks, and a person approves."));
  await showCall(demo, { callId: "call_2", tool: "read", input: { filePath: "notes.txt" } });
  const write = { filePath: "notes.txt", content: "Buy milk.\nAnd bread.\n" };
  await showCall(demo, { callId: "call_3", tool: "write", input: write }, answers.person, approval);
  say(out("dim", indented(await readFile(join(workspace, "notes.txt"), "utf8"))));

  say(out("bold", "\n3. The agent wants to delete everything. A person rejects it, with advice."));
  const remove = { command: "rm -rf notes.txt", description: "Remove the notes" };
  await showCall(demo, { callId: "call_4", tool: "bash", input: remove }, answers.automatic, {
    reply: PermissionReply.REJECT,
    message: "Keep the notes; move them to archive/ instead.",
  });

  const [start, toolgate] = isCheckout
    ? ["npm start", "npm run -s toolgate --"]
    : ["npx toolgate serve", "npx toolgate"];
  say(out("bold", `\nThat was it. Next: ${start}, then in a second terminal`));
  say(out("bold", `  ${toolgate} call bash '{"command": "date", "description": "Print the time"}'\n`));
}

/** Executes a tool and prints each event as it arrives; requests are answered while the call goes on. */
async function showCall(
  { agent, screen, signal }: Demo,
  call: { callId: string; tool: string; input: Record<string, string> },
  answers?: DemoAnswers,
  answer?: ReplyAnswer,
): Promise<void> {
  const settled = new AbortController();
  const over = AbortSignal.any([settled.signal, signal]);
  let answered: Promise<void> | undefined;
  try {
    for await (const { event } of agent.tools.executeTool({ sessionId, ...call }, { signal, timeoutMs: 0 })) {
      if (!event) continue;
      if (event.event.case === "permissionSettled") {
        settled.abort();
        await answered;
      }
      if (screen.json) screen.emit(SessionEventSchema, event);
      else for (const line of eventLines(event, screen.paint.out)) screen.write(`${line}\n`);
      if (event.event.case === "permissionAsked" && answers && answer) {
        showRequest(event.event.value, screen);
        answered = answers(event.event.value, answer, over);
      }
    }
  } finally {
    settled.abort();
    await answered;
  }
}

function eventLines({ seq, event }: SessionEvent, paint: Paint): string[] {
  const line = (text: string) => paint("cyan", `   #${seq} ${text}`);
  const block = (text: string) => indented(terminalSafe(text));
  switch (event.case) {
    case "permissionAsked":
      return [line(`asks: ${event.value.permission} ${event.value.patterns.join(" ")}`)];
    case "permissionSettled":
      return [line(`answered by ${event.value.by}`)];
    case "output":
      return [line(`output\n${block(Buffer.from(event.value.data).toString())}`)];
    case "part": {
      const { tool, state } = event.value;
      const head = line(`${state.case} ${tool}`);
      if (state.case === "completed" && tool !== "bash") return [head, paint("dim", block(state.value.output))];
      if (state.case === "error") return [head, paint("red", block(state.value.error))];
      return [head];
    }
    default:
      return [];
  }
}
