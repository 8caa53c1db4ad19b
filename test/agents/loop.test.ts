import { existsSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { createPlace, runClaude, runOpencode } from "./agents.ts";
import { serveAnthropic, serveOpenAi } from "./mock-models.ts";

const touch = { command: "touch marker; echo out", description: "leaves a marker" };

test("Claude Code runs what the mock model asks for, and sends the result back", async () => {
  const place = await createPlace();
  const model = await serveAnthropic([["go", [{ tool: "Bash", input: touch }]]]);
  const run = await runClaude(place, model, ["--allowedTools", "Bash"]);
  expect(run).toMatchObject({ code: 0, stderr: "" });
  expect(JSON.parse(run.stdout)).toMatchObject({ result: "done", permission_denials: [] });
  expect(existsSync(join(place.workspace, "marker"))).toBe(true);
  expect(model.results).toEqual([expect.stringContaining('"content":"out"')]);
});

test("opencode runs what the mock model asks for, and sends the result back", async () => {
  const place = await createPlace();
  const model = await serveOpenAi([["go", [{ tool: "bash", input: touch }]]]);
  const run = await runOpencode(place, model);
  expect(run.code).toBe(0);
  expect(existsSync(join(place.workspace, "marker"))).toBe(true);
  expect(model.results).toEqual([expect.stringContaining("out")]);
});
