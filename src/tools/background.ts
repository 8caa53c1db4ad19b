import * as z from "zod";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { BackgroundCalls } from "../agents/runners/runner.ts";
import type { Subagents } from "../agents/runners/subagents.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { childSessionOf, describeAgents, taskInput } from "./task/task-input.ts";
import { endText, fieldLines, statusOf, statusText } from "./task/task-report.ts";

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
function taskNotFound(taskId: string): ToolFailure {
  return new ToolFailure(
    `Task not found: ${taskId}. Use the Task ID that background_task returned in this session; results are stored for 7 days.`,
    { hadNoEffects: true },
  );
}

const hasEnded = ({ state }: ToolPart) => state.case === "completed" || state.case === "error";

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
      if (hasEnded(task))
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
