import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { readTodos, showTodos, storeTodos, titleOfTodos, todoList } from "./todo/todo-list.ts";

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
    await storeTodos(state, todos);
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
  execute: async (_input, { state }) => showTodos(await readTodos(state)),
});
