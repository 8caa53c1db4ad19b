import { existsSync } from "node:fs";
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test, vi } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createService } from "../e2e/service.ts";
import { type ConnectedPerson, connectPerson } from "./claude-runner.ts";
import { answerNext } from "./connectors.ts";
import { type MockModel, serveAnthropic } from "./mock-models.ts";

const service = createService({ settings: '[permission.edit]\n"marker" = "allow"\n' });
beforeAll(service.start);
afterAll(service.close);

const marker = () => join(service.workspace, "marker");
beforeEach(() => rm(marker(), { force: true }));

const touch = { tool: "Bash", input: { command: "echo ran >> marker", description: "leaves a marker" } };

/** Answers the request of the model's use after it was deferred, which is after 20 s. */
async function runAndAnswer(person: ConnectedPerson, model: MockModel, reply: PermissionReply, more = {}) {
  const running = person.claude(model, ["go", "--output-format", "json"]);
  const decisions = join(person.home, ".local/state/toolgate/decisions");
  await vi.waitFor(async () => expect(await hasDeferred(decisions)).toBe(true), { timeout: 60_000, interval: 200 });
  expect(existsSync(marker())).toBe(false);
  await answerNext(service, reply, more);
  return await running;
}

/** Checks if the hook left a waiting decision with a request, which it does when it defers. */
async function hasDeferred(directory: string): Promise<boolean> {
  if (!existsSync(directory)) return false;
  const texts = await Promise.all((await readdir(directory)).map((name) => readFile(join(directory, name), "utf8")));
  return texts.some((text) => text.includes('"permissions"'));
}

test("a use that is approved after it was deferred runs exactly once, when the run is resumed", async () => {
  const person = await connectPerson(service);
  const model = await serveAnthropic([["go", [touch]]]);
  const { code, stdout } = await runAndAnswer(person, model, PermissionReply.ONCE);
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toMatchObject({ result: "done", terminal_reason: "completed", permission_denials: [] });
  expect(await readFile(marker(), "utf8")).toBe("ran\n");
  expect(model.results).toHaveLength(1);
});

test("a use that is rejected after it was deferred does not run, and the model reads the advice", async () => {
  const person = await connectPerson(service);
  const model = await serveAnthropic([["go", [touch]]]);
  const { code } = await runAndAnswer(person, model, PermissionReply.REJECT, { message: "Use the other file." });
  expect(code).toBe(0);
  expect(existsSync(marker())).toBe(false);
  expect(model.results).toEqual([expect.stringContaining("Use the other file.")]);
});

test("a use that is approved before it is deferred runs exactly once, in the first run", async () => {
  const person = await connectPerson(service);
  const model = await serveAnthropic([["go", [touch]]]);
  const running = person.claude(model, ["go"]);
  await answerNext(service, PermissionReply.ONCE);
  expect(await running).toMatchObject({ code: 0, stdout: "done\n" });
  expect(await readFile(marker(), "utf8")).toBe("ran\n");
});
