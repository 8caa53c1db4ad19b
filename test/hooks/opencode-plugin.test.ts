import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { expect, onTestFinished, test } from "vitest";
import { opencodePlugin } from "../../src/agents/hooks/opencode-plugin.ts";

type Hook = (input: object, output: object) => Promise<void>;

/** Loads the plugin as opencode does, with a program that answers with a text and stores what it got. */
async function loadPlugin(answer: string, command?: readonly string[]) {
  const folder = mkdtempSync(join(tmpdir(), "toolgate-plugin-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const got = join(folder, "got");
  const program = join(folder, "program.sh");
  writeFileSync(program, `cat >> '${got}'; echo >> '${got}'; printf '%s' '${answer}'\n`);
  const file = join(folder, "toolgate.mjs");
  writeFileSync(file, opencodePlugin(command ?? ["sh", program]));
  const { Toolgate } = await import(pathToFileURL(file).href);
  const sessions: Record<string, object> = { s1: { id: "s1" }, s2: { id: "s2", parentID: "s1" } };
  const client = { session: { get: async ({ path }: { path: { id: string } }) => ({ data: sessions[path.id] }) } };
  const hooks: Record<string, Hook> = await Toolgate({ client, directory: "/home/ann/shop" });
  const before = async (args: object, sessionID = "s1") => {
    const output = { args };
    await hooks["tool.execute.before"]?.({ tool: "bash", sessionID, callID: "c1" }, output);
    return output.args;
  };
  const sent = () =>
    readFileSync(got, "utf8")
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
  return { before, hooks, sent };
}

test("an allowed use runs with the input of the answer, in the same object", async () => {
  const { before, sent } = await loadPlugin('{"decision":"allow","input":{"command":"ls"}}');
  const args = { command: "make", timeout: 5 };
  expect(await before(args)).toBe(args);
  expect(args).toEqual({ command: "ls" });
  expect(sent()).toEqual([
    {
      event: "before",
      session: "s1",
      parent: "",
      agent: "",
      call: "c1",
      tool: "bash",
      input: { command: "make", timeout: 5 },
      cwd: "/home/ann/shop",
    },
  ]);
});

test.each([
  ["a refusal", '{"decision":"deny","reason":"Rejected by ann."}', "Rejected by ann."],
  ["a refusal that names an input", '{"decision":"deny","reason":"No.","input":{}}', "No."],
  ["no answer", "", "ended with 0 and without an answer"],
  ["text", "yes", "without an answer"],
  ["an answer without a decision", "{}", "Toolgate refused it."],
  ["an approval without an input", '{"decision":"allow"}', "Toolgate refused it."],
])("%s throws, so that opencode does not run the tool", async (_name, answer, reason) => {
  const { before } = await loadPlugin(answer);
  await expect(before({ command: "make" })).rejects.toThrow(reason);
});

test("the program gets no variable of the agent but HOME", async () => {
  process.env.TOOLGATE_TEST_VARIABLE = "secret";
  onTestFinished(() => void delete process.env.TOOLGATE_TEST_VARIABLE);
  const names = `env | sed 's/=.*//' | grep -v '^PWD$\\|^_$\\|^SHLVL$\\|^OLDPWD$' | tr '\\n' ' '`;
  const script = `printf '{"decision":"deny","reason":"%s"}' "$(${names})"`;
  const { before } = await loadPlugin("", ["/bin/sh", "-c", script]);
  await expect(before({})).rejects.toThrow(/^HOME ?$/);
});

test("a missing program, a failing one and an unknown session throw", async () => {
  const missing = await loadPlugin("", ["/nonexistent/toolgate"]);
  await expect(missing.before({})).rejects.toThrow("/nonexistent/toolgate cannot be started (ENOENT)");
  const failing = await loadPlugin("", ["false"]);
  await expect(failing.before({})).rejects.toThrow("ended with 1");
  const unknown = await loadPlugin('{"decision":"allow","input":{}}');
  await expect(unknown.before({}, "s9")).rejects.toThrow("does not know the session");
});

test("a subagent's session names its parent and its agent", async () => {
  const { before, hooks, sent } = await loadPlugin('{"decision":"allow","input":{}}');
  await hooks["chat.message"]?.({ sessionID: "s2", agent: "explore" }, {});
  await before({}, "s2");
  expect(sent()).toMatchObject([{ session: "s2", parent: "s1", agent: "explore" }]);
});

test("the input that ran is reported, also if another plugin changed it", async () => {
  const { before, hooks, sent } = await loadPlugin('{"decision":"allow","input":{"command":"ls"}}');
  await before({ command: "make" });
  await hooks["tool.execute.after"]?.({ callID: "c1", args: { command: "rm" } }, { output: "out" });
  expect(sent()[1]).toMatchObject({ event: "after", input: { command: "rm" }, output: "out" });
});

test("a result is reported once, with its exit code; a failure by the event of the part", async () => {
  const { before, hooks, sent } = await loadPlugin('{"decision":"allow","input":{"command":"ls"}}');
  await before({ command: "make" });
  const after = hooks["tool.execute.after"];
  await after?.({ callID: "c1" }, { output: "out", metadata: { exit: 3 } });
  await after?.({ callID: "c1" }, { output: "again" });
  await before({ command: "make" });
  const part = { type: "tool", callID: "c1", state: { status: "error", error: "it broke" } };
  await hooks.event?.({ event: { type: "message.part.updated", properties: { part } } }, {});
  expect(sent().slice(1)).toMatchObject([
    { event: "after", input: { command: "ls" }, output: "out", exit: 3 },
    { event: "before" },
    { event: "failed", input: { command: "ls" }, error: "it broke" },
  ]);
});
