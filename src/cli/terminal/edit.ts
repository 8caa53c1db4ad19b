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
import { UsageError } from "../failure/command-error.ts";
import { parseJsonObject } from "../json-argument.ts";
import { jsonSafe } from "./terminal-safe.ts";

/** Opens the arguments of a pending call in the person's editor; returns undefined if they are unchanged. */
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
    return after === before ? undefined : parseJsonObject(after, "the edited input");
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function runEditor(editor: string, file: string): Promise<void> {
  // The variable may contain options, so a shell reads it, as other programs do.
  const child = spawn("/bin/sh", ["-c", `${editor} "$1"`, "sh", file], { stdio: "inherit" });
  const [code] = await once(child, "exit");
  if (code !== 0)
    throw new UsageError(
      `the editor (${editor}) ended with ${code}: nothing was changed`,
      "set another one in $EDITOR",
    );
}
