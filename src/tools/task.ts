import type { JsonObject } from "@bufbuild/protobuf";
import type { RunUpdate } from "../agents/runners/runner.ts";
import type { SubagentRequest, Subagents } from "../agents/runners/subagents.ts";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool, PlanContext, ToolContext } from "../tool/tool.ts";
import { childSessionOf, describeAgents, type TaskInput, taskInput } from "./task/task-input.ts";

/** Maximum run time of a subagent, unless the call sets another one: it includes waits for approvers of its calls. */
const timeoutMs = 4 * 3_600_000;

/** Starts a subagent in a child session, and returns its answer. */
export function createTask({
  subagents,
}: {
  subagents: Pick<Subagents, "check" | "durability" | "run" | "startable">;
}): DefinedTool {
  return defineTool({
    name: "task",
    version: "1",
    description: [
      "Start another agent on a task of several steps. It works in a separate session, knows nothing but your prompt, and returns one",
      "message, which the user does not see: say what you need from it. Start several agents at once where tasks are independent.",
      "To continue with the same agent where it stopped, send its session_id.",
    ].join(" "),
    input: taskInput,
    permissions: ["task"],
    openWorld: true,
    destructive: true,
    timeoutMs,
    durable: subagents.durability,
    offer: async (ctx) => describeAgents(subagents, ctx),
    plan(input, ctx) {
      const request = requestOf(input, ctx);
      return {
        title: input.description,
        childSession: request.childSession,
        asks: [
          {
            permission: "task",
            patterns: [input.agent],
            always: ["*"],
            metadata: { description: input.description, subagent_type: input.agent },
          },
        ],
        async inspect() {
          await subagents.check(request);
          return { preview: () => ({ text: input.prompt }) };
        },
      };
    },
    async execute(input, ctx) {
      const { description, prompt, agent } = input;
      const request = requestOf(input, ctx);
      const shown: JsonObject = { sessionId: request.childSession, agent };
      const progress = createShownProgress((now) => ctx.metadata({ ...now, metadata: { ...shown, ...now.metadata } }));
      const work = { description, prompt, cwd: ctx.workspace.directory };
      try {
        const { text, runner } = await subagents.run(request, work, ctx, (update) => {
          if (update.type === "started") shown.runner = update.runner.name;
          progress.show(update.type === "started" ? {} : update);
        });
        return {
          title: description,
          output: resultText(request.childSession, text),
          metadata: shown,
          ...(runner.bypasses !== "" && { note: `Note: ${runner.bypasses}` }),
        };
      } finally {
        progress.stop();
      }
    },
  });
}

function requestOf(
  { agent, session_id: resumed }: TaskInput,
  { sessionId, callId, agent: callingAgent }: Pick<PlanContext | ToolContext, "sessionId" | "callId" | "agent">,
): SubagentRequest {
  const childSession = resumed ?? childSessionOf({ sessionId, callId });
  return { sessionId, callId, callingAgent, agent, childSession, isResumed: resumed !== undefined };
}

/** Returns the answer as models read it. The text of the agent cannot end its frame early. */
function resultText(childSession: string, text: string): string {
  const framed = (text.trim() === "" ? "(No text output)" : text).replaceAll(/<(\/?task_result)/gi, "&lt;$1");
  return `task_id: ${childSession} (for resuming to continue this task if needed)\n\n<task_result>\n${framed}\n</task_result>`;
}

type Progress = Omit<Extract<RunUpdate, { type: "progress" }>, "type">;

const everyMs = 1_000;
const maxTitleLength = 200;
const maxTextLength = 2_000;

/** Shows what a subagent does now, at most once a second, however often it reports. */
function createShownProgress(show: (shown: { title?: string; metadata?: JsonObject }) => void) {
  let timer: NodeJS.Timeout | undefined;
  let latest: Progress = {};
  let isStale = false;
  let isStopped = false;

  function emit(): void {
    isStale = false;
    timer = setTimeout(() => {
      timer = undefined;
      if (isStale) emit();
    }, everyMs);
    const { title = "", text = "" } = latest;
    show({ ...(title !== "" && { title }), ...(text !== "" && { metadata: { progress: text } }) });
  }

  return {
    show({ title = "", text = "" }: Progress): void {
      latest = {
        title: title === "" ? (latest.title ?? "") : title.slice(0, maxTitleLength).toWellFormed(),
        text: text === "" ? (latest.text ?? "") : text.slice(-maxTextLength).toWellFormed(),
      };
      isStale = true;
      if (timer === undefined && !isStopped) emit();
    },
    stop(): void {
      isStopped = true;
      clearTimeout(timer);
    },
  };
}
