import { afterEach, beforeEach, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { InvalidInput } from "../../src/tool/errors.ts";
import { todoread, todowrite } from "../../src/tools/todo.ts";

let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const todo = (content: string, status = "pending", priority = "medium") => ({ content, status, priority });

test("todoread returns the last list, whole and in order", async () => {
  const list = [
    todo("look", "completed"),
    todo("build", "in_progress", "high"),
    todo("test"),
    todo("talk", "cancelled"),
  ];
  await callTool(site, todowrite, { todos: [todo("old")] });
  const written = await callTool(site, todowrite, { todos: list });
  expect(written).toMatchObject({ title: "2 todos", metadata: { todos: list } });
  expect(JSON.parse(written.output ?? "")).toEqual(list);
  expect((await callTool(site, todoread, {})).output).toBe(written.output);
});

test("a session without a list has an empty one", async () => {
  expect(await callTool(site, todoread, {})).toMatchObject({ title: "0 todos", output: "[]" });
});

test.each([
  ["two in progress", [todo("a", "in_progress"), todo("b", "in_progress")], "only one todo may be in_progress"],
  ["the same id twice", ["a", "b"].map((content) => ({ ...todo(content), id: "1" })), "two todos have the same id"],
  ["nothing to do", [todo("  ")], "todos.0.content"],
  ["a status that there is not", [todo("a", "doing")], "todos.0.status"],
])("%s is refused, and the list stays", async (_, todos, message) => {
  await callTool(site, todowrite, { todos: [todo("kept")] });
  const refused = callTool(site, todowrite, { todos });
  await expect(refused).rejects.toThrow(InvalidInput);
  await expect(refused).rejects.toThrow(message);
  expect((await callTool(site, todoread, {})).output).toContain("kept");
});

test("each asks for the permission of its name, which the defaults allow", async () => {
  expect((await planCall(site, todowrite, { todos: [] })).plan.asks).toEqual([
    { permission: "todowrite", patterns: ["*"] },
  ]);
  expect((await planCall(site, todoread, {})).plan.asks).toEqual([{ permission: "todoread", patterns: ["*"] }]);
});
