import { execFile } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { toolgate } from "./cli/toolgate.ts";
import { createService } from "./e2e/service.ts";

const root = join(import.meta.dirname, "..");
const page = await readFile(join(root, "docs/tools.md"), "utf8");
const blocks = [...page.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)].map(([, language = "", text = ""]) => ({
  language,
  text,
}));
const textsOf = (language: string) => blocks.filter((block) => block.language === language).map(({ text }) => text);

/** Commands of the page with their output, which is the block after them. */
const runs = blocks.flatMap(({ language, text }, i) => {
  const output = blocks[i + 1];
  return language === "sh" && output?.language === "text"
    ? [{ commands: text.trim().split("\n"), output: output.text }]
    : [];
});

const service = createService();

beforeAll(async () => {
  await service.start();
  await service.stop();
  const folder = dirname(service.config);
  for (const text of textsOf("ts")) {
    const path = /^\/\/ (.+)\n/.exec(text)?.[1];
    if (path === undefined) throw new Error(`a snippet of the page names no file:\n${text}`);
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), text);
  }
  // Tables may stand only once in a file: the page shows the parts of one.
  const settings = textsOf("toml").join("\n");
  const rules = settings.replaceAll("[permission]\n", "").replace(/^plugin = .*\n/m, "");
  const [plain = "", own = ""] = [
    rules.replace(/\[permission\.release\]\n(.+\n)+/, ""),
    /\[permission\.release\]\n(.+\n)+/.exec(rules)?.[0],
  ];
  const plugin = /^plugin = .*\n/m.exec(settings)?.[0] ?? "";
  await writeFile(service.config, `${plugin}${await readFile(service.config, "utf8")}\n[permission]\n${plain}\n${own}`);
  await writeFile(join(service.workspace, "project.json"), '{ "version": "1.2.3" }');
  await service.start();
});
afterAll(service.close);

/** Runs `toolgate` as a caller. */
const run = (...args: string[]) =>
  toolgate(args, { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" });

/** Runs a line of the page. */
async function runLine(line: string) {
  const [, tool = "", input = ""] = /^toolgate call (\w+) '(.*)'$/.exec(line) ?? [];
  return await run("call", tool, input);
}

test.each(runs.map((run, i) => [run.commands[0], run, i === 0]))(
  "docs/tools.md: %s",
  async (_title, { commands, output }, isFirst) => {
    const printed = (await Promise.all(commands.map(runLine))).map(({ stdout }) => `${stdout.trimEnd()}\n`).join("");
    // The plugin at the end of the page is there from the beginning here.
    expect(printed).toBe(isFirst ? `${output.trimEnd()} How are you?\n` : output);
  },
);

test("docs/tools.md: the plugin stops what it should, by its name", async () => {
  expect(await runLine(`toolgate call greet '{"name": "Bob"}'`)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("tool.execute.before of the plugin guard stopped this: Bob is not to be disturbed"),
  });
});

test("docs/tools.md: all of its tools are there, and nothing is wrong with them", async () => {
  const { stdout, stderr } = await run("tools");
  for (const name of ["greet", "letters", "release", "text_upper", "words"])
    expect(stdout).toMatch(new RegExp(`^${name}  `, "m"));
  expect(stderr).toBe("");
});

test("docs/tools.md: the test of its tool passes", async () => {
  const folder = dirname(service.config);
  const installed = join(folder, "node_modules/toolgate");
  await mkdir(installed, { recursive: true });
  const entries = { plugin: "src/tool/plugin.ts", testing: "src/testing.ts" };
  for (const [name, path] of Object.entries(entries))
    await writeFile(join(installed, `${name}.js`), `export * from ${JSON.stringify(join(root, path))};\n`);
  const exports = { "./plugin": "./plugin.js", "./testing": "./testing.js" };
  await writeFile(join(installed, "package.json"), JSON.stringify({ type: "module", exports }));
  const [command = ""] = textsOf("sh").filter((text) => text.startsWith("node --test"));
  const { stdout } = await promisify(execFile)(process.execPath, command.trim().split(" ").slice(1), { cwd: folder });
  expect(stdout).toContain("pass 4");
  expect(stdout).toContain("fail 0");
});
