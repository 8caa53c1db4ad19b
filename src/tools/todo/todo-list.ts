import * as z from "zod";
import type { ToolContext, ToolResult } from "../../tool/tool.ts";

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
export const todoList = z
  .array(todo)
  .max(maxTodos)
  .refine((list) => list.filter(({ status }) => status === "in_progress").length <= 1, {
    error: "only one todo may be in_progress at a time; set the others to pending or completed",
  })
  .refine((list) => isDistinct(list.flatMap(({ id = [] }) => id)), {
    error: "two todos have the same id; give each its own, or none",
  });

/** A todo list that fits the schema. */
export type TodoList = z.output<typeof todoList>;

/** Returns the session's list; empty if none was stored. */
export async function readTodos(state: ToolContext["state"]): Promise<TodoList> {
  return todoList.parse((await state.get(stateName)) ?? []);
}

/** Stores the session's list, in place of the one before. */
export async function storeTodos(state: ToolContext["state"], todos: TodoList): Promise<void> {
  await state.set(stateName, todos);
}

/** Formats a list as the result of a tool. */
export function showTodos(todos: TodoList): ToolResult {
  return { title: titleOfTodos(todos), output: JSON.stringify(todos, null, 2), metadata: { todos } };
}

/** Counts the todos that are not done, for a title. */
export function titleOfTodos(todos: TodoList): string {
  const open = todos.filter(({ status }) => status === "pending" || status === "in_progress").length;
  return `${open} ${open === 1 ? "todo" : "todos"}`;
}

const isDistinct = (ids: readonly string[]) => new Set(ids).size === ids.length;
