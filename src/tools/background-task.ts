import type { BackgroundCalls } from "../agents/runners/runner.ts";
import type { Subagents } from "../agents/runners/subagents.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { childSessionOf, describeAgents, taskInput } from "./task/task-input.ts";
import { fieldLines } from "./task/task-report.ts";

/** Starts a subagent and returns at once: the work is a separate call of `task`, which goes on after this one has ended. */
export function createBackgroundTask({
  background,
  subagents,
}: {
  background: Pick<BackgroundCalls, "start" | "find">;
  subagents: Pick<Subagents, "check" | "startable">;
}): DefinedTool {
  return defineTool({
    name: "background_task",
    version: "1",
    description: [
      "Start another agent on a task and go on at once, like task otherwise. You are notified when it has ended; read its answer with",
      "background_output, and stop it with background_cancel.",
    ].join(" "),
    input: taskInput,
    // The call of task that it makes asks.
    permissions: ["task"],
    idempotent: true,
    openWorld: true,
    destructive: true,
    offer: async (ctx) => describeAgents(subagents, ctx),
    plan: ({ agent, description, session_id: resumed }, { sessionId, callId, agent: callingAgent }) => ({
      title: description,
      asks: [],
      async inspect() {
        const childSession = resumed ?? childSessionOf({ sessionId, callId });
        const isResumed = resumed !== undefined;
        await subagents.check({ sessionId, callId, callingAgent, agent, childSession, isResumed });
        return {};
      },
    }),
    async execute({ session_id: resumed, ...work }, { sessionId, callId }) {
      const input = { ...work, ...(resumed !== undefined && { session_id: resumed }) };
      const taskId = await background.start({ sessionId, callId }, { tool: "task", input });
      const task = await background.find({ sessionId, callId: taskId });
      if (!task)
        throw new ToolFailure("The task was started, but cannot be found. Repeat the call with another call id.");
      const childSession = resumed ?? childSessionOf({ sessionId, callId: taskId });
      const fields = fieldLines([
        ["Task ID", taskId],
        ["Session ID", childSession],
        ["Description", work.description],
        ["Agent", work.agent],
        ["Status", "started; it begins when it is allowed"],
      ]);
      return {
        title: work.description,
        output: `Background task launched.\n\n${fields}\n\nGo on with other work; do not poll. When you are notified that the task has ended, or need its answer to go on, call background_output with task_id "${taskId}" (block: true waits).`,
        metadata: { taskId, sessionId: childSession, agent: work.agent },
      };
    },
  });
}
