import { randomUUID } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openSession } from "../echoes.ts";
import type { Http2Client } from "../http2-client.ts";
import type { Echo } from "../load.ts";

/** Rules that let all of these calls run without an ask. */
export const toolRules = 'bash = "allow"\nedit = "allow"';

/** A tool that is called over and over. */
export interface ToolCall {
  readonly label: string;
  /** Calls open at a time: an edit has to wait for the one before it. */
  readonly width: number;
  open(client: Http2Client): Promise<Echo>;
}

/** Writes the files that the calls read and search. */
export async function writeToolFiles(workspace: string, files: number): Promise<void> {
  await writeFile(join(workspace, "lines.txt"), lines);
  for (let from = 0; from < files; from += 100) {
    const folder = join(workspace, "tree", String(from));
    await mkdir(folder, { recursive: true });
    const write = (_: unknown, i: number) =>
      writeFile(join(folder, `f${i}.${i % 5 === 0 ? "ts" : "md"}`), `file ${from + i}\n${i === 7 ? "a needle\n" : ""}`);
    await Promise.all(Array.from({ length: Math.min(100, files - from) }, write));
  }
}

const lines = Array.from({ length: 2_000 }, (_, i) => `line ${i} of a text\n`).join("");

export const toolCalls: readonly ToolCall[] = [
  repeated("read, 2,000 lines", 4, "read", () => ({ filePath: "lines.txt" })),
  {
    label: "edit",
    width: 1,
    async open(client) {
      const call = await openCalls(client);
      // Both sides work in one directory.
      const filePath = `edited-${randomUUID()}.txt`;
      await call("write", { filePath, content: lines });
      let turn = 0;
      const words = ["line 1000 of a text", "line 1000 of the text"];
      const next = () => ({ oldString: words[turn % 2] ?? "", newString: words[++turn % 2] ?? "" });
      return () => call("edit", { filePath, ...next() });
    },
  },
  repeated("glob", 4, "glob", () => ({ pattern: "**/*.ts" })),
  repeated("grep", 4, "grep", () => ({ pattern: "needle" })),
  repeated("bash true", 4, "bash", () => ({ command: "true" })),
];

function repeated(label: string, width: number, tool: string, input: () => Record<string, string>): ToolCall {
  return {
    label,
    width,
    async open(client) {
      const call = await openCalls(client);
      return () => call(tool, input());
    },
  };
}

/** Opens a session; each call in it throws unless it completes. */
async function openCalls(client: Http2Client) {
  const sessionId = await openSession(client);
  let count = 0;
  return async (tool: string, input: Record<string, string>): Promise<void> => {
    count += 1;
    const call = { sessionId, callId: `call_${count}`, tool, input, waitMs: 60_000 };
    const { part } = await client.connect(ToolService.method.callTool, call);
    const { state } = part ?? {};
    if (state?.case === "completed") return;
    throw new Error(`${tool} ended as ${state?.case}: ${state?.case === "error" ? state.value.error : ""}`);
  };
}
