import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliProcess } from "../context.ts";
import { editorCommand } from "../environment.ts";
import { UsageError } from "../failure/failure.ts";
import { parseJsonObject } from "../json-argument.ts";
import { jsonSafe } from "./terminal-safe.ts";

/** Has the person change the arguments that a call waits with, in their editor; undefined if they left them as they were. */
export async function editCall(
  { tools }: ServerConnection,
  { sessionId, tool }: PermissionRequest,
  { env }: CliProcess,
): Promise<JsonObject | undefined> {
  const { part } = await tools.getToolPart({ sessionId, callId: tool?.callId ?? "" });
  return await editInput(part?.state.case === "pending" ? (part.state.value.input ?? {}) : {}, editorCommand(env));
}

async function editInput(input: JsonObject, editor: string): Promise<JsonObject | undefined> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-edit-"));
  const file = join(folder, "input.json");
  const before = `${jsonSafe(input)}\n`;
  try {
    await writeFile(file, before, { mode: 0o600 });
    await runEditor(editor, file);
    const after = await readFile(file, "utf8");
    return after === before ? undefined : parseJsonObject(after, "what you wrote");
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function runEditor(editor: string, file: string): Promise<void> {
  // The variable may hold options, so it is the shell's to read, as everywhere else.
  const child = spawn("/bin/sh", ["-c", `${editor} "$1"`, "sh", file], { stdio: "inherit" });
  const [code] = await once(child, "exit");
  if (code !== 0)
    throw new UsageError(`the editor (${editor}) ended with ${code}: nothing was changed`, "name another in $EDITOR");
}
