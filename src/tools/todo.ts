import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { ToolContext, ToolResult } from "../tool/tool.ts";

const stateName = "todos";
const maxTodos = 200;

const todo = z
  .object({
    content: z.string().trim().min(1).max(1_000).describe("What is to be done"),
    status: z.enum(["pending", "in_progress", "completed", "cancelled"]).describe("Where it stands"),
    priority: z.enum(["high", "medium", "low"]).default("medium").describe("How much it matters"),
    id: z.string().min(1).max(64).optional().describe("A name of your own for it"),
  })
  // What is absent has no place in JSON.
  .transform(({ id, ...rest }) => ({ ...rest, ...(id !== undefined && { id }) }));

const todos = z
  .array(todo)
  .max(maxTodos)
  .refine((list) => list.filter(({ status }) => status === "in_progress").length <= 1, {
    error: "only one todo may be in_progress at a time; set the others to pending or completed",
  })
  .refine((list) => isDistinct(list.flatMap(({ id = [] }) => id)), {
    error: "two todos have the same id; give each its own, or none",
  });

/** Replaces the session's todo list; a subagent's session has a list of its own. */
export const todowrite = defineTool({
  name: "todowrite",
  description: [
    "Write down the whole todo list of this session, replacing the one before. Use it for work of several steps:",
    "set one todo to in_progress before you begin it, and to completed as soon as it is done.",
  ].join(" "),
  input: z.object({ todos: todos.describe("All todos, in order") }),
  permissions: ["todowrite"],
  idempotent: true,
  plan: ({ todos }) => ({ title: titleOf(todos), asks: [{ permission: "todowrite", patterns: ["*"] }] }),
  async execute({ todos }, { state }) {
    await state.set(stateName, todos);
    return shown(todos);
  },
});

/** Shows the session's todo list. */
export const todoread = defineTool({
  name: "todoread",
  description: "Read the todo list of this session.",
  input: z.object({}),
  permissions: ["todoread"],
  readOnly: true,
  idempotent: true,
  plan: () => ({ title: "todos", asks: [{ permission: "todoread", patterns: ["*"] }] }),
  execute: async (_input, { state }) => shown(await kept(state)),
});

type Todos = z.output<typeof todos>;

async function kept(state: ToolContext["state"]): Promise<Todos> {
  return todos.parse((await state.get(stateName)) ?? []);
}

function shown(todos: Todos): ToolResult {
  return { title: titleOf(todos), output: JSON.stringify(todos, null, 2), metadata: { todos } };
}

const isDistinct = (ids: readonly string[]) => new Set(ids).size === ids.length;

function titleOf(todos: Todos): string {
  const open = todos.filter(({ status }) => status === "pending" || status === "in_progress").length;
  return `${open} ${open === 1 ? "todo" : "todos"}`;
}
