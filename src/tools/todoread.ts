import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { readTodos, showTodos } from "./todo/todo-list.ts";

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
