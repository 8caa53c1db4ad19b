import * as z from "zod";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { BackgroundCalls } from "../agents/runners/runner.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { taskNotFound } from "./background-output.ts";
import { fieldLines, statusOf } from "./task/task-report.ts";

const reason = "The task was cancelled by background_cancel.";

/** Cancels one or all background tasks of this session, with everything that their subagents do. */
export function createBackgroundCancel({
  background,
}: {
  background: Pick<BackgroundCalls, "find" | "openCalls" | "cancel">;
}): DefinedTool {
  return defineTool({
    name: "background_cancel",
    version: "1",
    description:
      "Cancel a task that background_task started, or all of this session, with the tasks that these started.",
    input: z
      .preprocess(
        (value) =>
          typeof value === "object" && value !== null && "task_id" in value && !("taskId" in value)
            ? { ...value, taskId: value.task_id }
            : value,
        z.object({
          taskId: z.string().min(1).max(128).optional().describe("The Task ID that background_task returned"),
          all: z.boolean().default(false).describe("Cancel every task of this session that has not ended"),
        }),
      )
      .refine(({ taskId, all }) => all !== (taskId !== undefined), "send either taskId, or all: true"),
    permissions: ["task"],
    idempotent: true,
    destructive: true,
    plan: ({ taskId }) => ({ title: taskId ?? "all tasks", asks: [] }),
    async execute({ taskId }, { sessionId }) {
      if (taskId === undefined) {
        const open = (await background.openCalls(sessionId)).filter((call) => call.background);
        return report(await Promise.all(open.map(({ callId }) => background.cancel({ sessionId, callId }, reason))));
      }
      const id = { sessionId, callId: taskId };
      const task = await background.find(id);
      if (!task) throw taskNotFound(taskId);
      if (task.state.case === "completed" || task.state.case === "error")
        throw new ToolFailure(
          `Task ${taskId} has ended already (${statusOf(task)}): only a task that runs or waits can be cancelled. Read it with background_output.`,
          { hadNoEffects: true },
        );
      return report([await background.cancel(id, reason)]);
    },
  });
}

function report(ended: readonly ToolPart[]) {
  const ids = ended.map(({ callId }) => callId);
  if (ids.length === 0) return { title: "no task", output: "No background task of this session runs or waits." };
  const lines = fieldLines(ended.map((task) => [task.callId, statusOf(task)]));
  return { title: `${ids.length} cancelled`, output: `Cancelled ${ids.length}:\n${lines}`, metadata: { taskIds: ids } };
}
