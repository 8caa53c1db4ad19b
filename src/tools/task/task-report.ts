import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { visible } from "../../core/visible.ts";

const maxPreview = 500;

/** State of a background task that has not ended. */
export interface TaskState {
  task: ToolPart;
  now: number;
  /** The tool that the subagent called last, and the text that it wrote last. */
  lastTool: string | undefined;
  lastText: string;
}

/** Returns the status of a task as a table, with the beginning of its prompt and of its last text. */
export function statusText({ task, now, lastTool, lastText }: TaskState): string {
  const rows = [...fieldsOf(task, now), ...(lastTool === undefined ? [] : [["Last tool", lastTool] as const])];
  const table = ["| Field | Value |", "| --- | --- |", ...rows.map(([name, value]) => `| ${name} | ${cell(value)} |`)];
  const { prompt } = inputOf(task);
  const blocks = [
    ["Prompt", prompt],
    ["Last message", lastText],
  ].flatMap(([name, text = ""]) => (text === "" ? [] : [`${name}:\n${visible(shortened(text))}`]));
  return [table.join("\n"), ...blocks].join("\n\n");
}

/** Returns the result of a task that has ended. */
export function endText(task: ToolPart, now: number): string {
  const { state } = task;
  const text = state.case === "completed" ? state.value.output : state.case === "error" ? state.value.error : "";
  return `Task Result\n\n${fieldLines(fieldsOf(task, now))}\n\n---\n\n${text === "" ? "(No text output)" : text}`;
}

/** Returns fields as lines; what the text of a model could disguise is escaped. */
export function fieldLines(fields: readonly (readonly [name: string, value: string])[]): string {
  return fields.map(([name, value]) => `${name}: ${visible(value).replaceAll("\n", " ")}`).join("\n");
}

/** Returns the state of a task as a word. */
export function statusOf({ state, permissionIds }: ToolPart): string {
  if (state.case === "pending") return permissionIds.length > 0 ? "waits for approval" : "pending";
  return state.case ?? "pending";
}

function fieldsOf(task: ToolPart, now: number): (readonly [name: string, value: string])[] {
  const { agent = "", description = "" } = inputOf(task);
  const time = task.state.case === "pending" ? undefined : task.state.value?.time;
  const end = time && "end" in time ? time.end : now;
  return [
    ["Task ID", task.callId],
    ["Description", description],
    ["Agent", agent],
    ["Status", statusOf(task)],
    ...(time === undefined ? [] : [["Duration", durationText(end - time.start)] as const]),
    ...(task.childSessionId === "" ? [] : [["Session ID", task.childSessionId] as const]),
  ];
}

function inputOf({ state }: ToolPart): { agent?: string; description?: string; prompt?: string } {
  const { agent, subagent_type, description, prompt } = state.value?.input ?? {};
  const name = agent ?? subagent_type;
  return {
    ...(typeof name === "string" && { agent: name }),
    ...(typeof description === "string" && { description }),
    ...(typeof prompt === "string" && { prompt }),
  };
}

function durationText(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1_000));
  const [hours, minutes] = [Math.floor(seconds / 3_600), Math.floor(seconds / 60) % 60];
  return [hours > 0 && `${hours}h`, (hours > 0 || minutes > 0) && `${minutes}m`, `${seconds % 60}s`]
    .filter(Boolean)
    .join(" ");
}

const cell = (text: string) => visible(text).replaceAll("\n", " ").replaceAll("|", "\\|");
const shortened = (text: string) => (text.length > maxPreview ? `${text.slice(0, maxPreview)}…` : text);
