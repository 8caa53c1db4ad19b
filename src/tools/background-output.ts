import * as z from "zod";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { BackgroundCalls } from "../agents/runners/runner.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { endText, statusOf, statusText } from "./task/task-report.ts";

const maxWaitMs = 600_000;

/** Reads the state or the result of a background task of this session. */
export function createBackgroundOutput({
  background,
}: {
  background: Pick<BackgroundCalls, "find" | "wait" | "shown" | "lastTool">;
}): DefinedTool {
  return defineTool({
    name: "background_output",
    version: "1",
    description: [
      "Read the answer of a task that background_task started, or what it does now. With block it waits for the end of the task, up to",
      "timeout ms.",
    ].join(" "),
    input: z.object({
      task_id: z.string().min(1).max(128).describe("The Task ID that background_task returned"),
      block: z.boolean().default(false).describe("Wait until the task has ended"),
      timeout: z.int().min(0).max(maxWaitMs).default(60_000).describe(`The longest wait in ms, at most ${maxWaitMs}`),
    }),
    // It asks nothing, since it reads calls of this session alone; who may start no task needs it not.
    permissions: ["task"],
    readOnly: true,
    idempotent: true,
    timeoutMs: maxWaitMs + 60_000,
    plan: ({ task_id: taskId }) => ({ title: taskId, asks: [] }),
    async execute({ task_id: callId, block, timeout }, { sessionId, signal }) {
      const id = { sessionId, callId };
      const found = await background.find(id);
      if (!found) throw taskNotFound(callId);
      const task = block && !hasEnded(found) ? await background.wait(id, timeout, signal) : found;
      const metadata = { taskId: callId, sessionId: task.childSessionId, status: statusOf(task) };
      if (hasEnded(task)) return { title: callId, output: endText(task, Date.now()), metadata };
      const { metadata: shown = {} } = background.shown(id);
      const lastTool = task.childSessionId === "" ? undefined : await background.lastTool(task.childSessionId);
      const lastText = typeof shown.progress === "string" ? shown.progress : "";
      const status = statusText({ task, now: Date.now(), lastTool, lastText });
      const timedOut = block ? `Timeout exceeded (${timeout}ms). Task still running.\n\n` : "";
      return { title: callId, output: `${timedOut}${status}`, metadata };
    },
  });
}

/** Returns the failure of a tool that names a task that this session has not. */
export function taskNotFound(taskId: string): ToolFailure {
  return new ToolFailure(
    `Task not found: ${taskId}. Use the Task ID that background_task returned in this session; results are stored for 7 days.`,
    { hadNoEffects: true },
  );
}

const hasEnded = ({ state }: ToolPart) => state.case === "completed" || state.case === "error";
