import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { ToolResult } from "../tool/tool.ts";

const stateName = "todos";
const maxTodos = 200;

const todo = z
  .object({
    content: z.string().trim().min(1).max(1_000).describe("What is to be done"),
    status: z.enum(["pending", "in_progress", "completed", "cancelled"]).describe("Where it stands"),
    priority: z.enum(["high", "medium", "low"]).default("medium").describe("How much it matters"),
    id: z.string().min(1).max(64).optional().describe("A name of your own for it"),
  })
  // JSON has no undefined: an absent id is left out.
  .transform(({ id, ...rest }) => ({ ...rest, ...(id !== undefined && { id }) }));

/** Schema of a todo list. */
const todoList = z
  .array(todo)
  .max(maxTodos)
  .refine((list) => list.filter(({ status }) => status === "in_progress").length <= 1, {
    error: "only one todo may be in_progress at a time; set the others to pending or completed",
  })
  .refine((list) => isDistinct(list.flatMap(({ id = [] }) => id)), {
    error: "two todos have the same id; give each its own, or none",
  });

/** Replaces the session's todo list; a subagent's session has its own list. */
export const todowrite = defineTool({
  name: "todowrite",
  version: "1",
  description: [
    "Write down the whole todo list of this session, replacing the one before. Use it for work of several steps:",
    "set one todo to in_progress before you begin it, and to completed as soon as it is done.",
  ].join(" "),
  input: z.object({ todos: todoList.describe("All todos, in order") }),
  permissions: ["todowrite"],
  idempotent: true,
  plan: ({ todos }) => ({ title: titleOfTodos(todos), asks: [{ permission: "todowrite", patterns: ["*"] }] }),
  async execute({ todos }, { state }) {
    await state.set(stateName, todos);
    return showTodos(todos);
  },
});

/** Shows the session's todo list. */
export const todoread = defineTool({
  name: "todoread",
  version: "1",
  description: "Read the todo list of this session.",
  input: z.object({}),
  permissions: ["todoread"],
  readOnly: true,
  idempotent: true,
  plan: () => ({ title: "todos", asks: [{ permission: "todoread", patterns: ["*"] }] }),
  execute: async (_input, { state }) => showTodos(todoList.parse((await state.get(stateName)) ?? [])),
});

/** Formats a list as the result of a tool. */
function showTodos(todos: z.output<typeof todoList>): ToolResult {
  return { title: titleOfTodos(todos), output: JSON.stringify(todos, null, 2), metadata: { todos } };
}

/** Counts the todos that are not done, for a title. */
function titleOfTodos(todos: z.output<typeof todoList>): string {
  const open = todos.filter(({ status }) => status === "pending" || status === "in_progress").length;
  return `${open} ${open === 1 ? "todo" : "todos"}`;
}

const isDistinct = (ids: readonly string[]) => new Set(ids).size === ids.length;
