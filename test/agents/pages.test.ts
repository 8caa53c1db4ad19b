import { chmod, mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { startProgramAtTerminal } from "../cli/toolgate.ts";
import { hostTokens } from "../e2e/host.ts";
import { createService } from "../e2e/service.ts";
import { programEntry } from "../main.ts";
import { type AgentPlace, claudeEnv, createPlace, runClaude } from "./agents.ts";
import { answerNext, ownProgram } from "./connectors.ts";
import { type MockModel, serveAnthropic } from "./mock-models.ts";
import { agentPrograms } from "./programs.ts";

/** Each command and each configuration of the agents' pages is used as it stands there; only addresses, files and users differ. */
const names = ["claude-code", "mcp", "opencode"];
const pages = await Promise.all(
  names.map((name) => readFile(resolve(import.meta.dirname, `../../docs/agents/${name}.md`), "utf8")),
);
const text = pages.join("\n");
const blocks = [...text.matchAll(/^```(?:sh|json|toml)\n([\s\S]*?)^```/gm)].map(([, block = ""]) => block);
const shown = new Set([
  ...blocks,
  ...[...text.matchAll(/`((?:npx )?toolgate [^`\n]+)`/g)].map(([, inline = ""]) => inline),
]);
const used = new Set<string>();

const service = createService({ settings: `${hostTokens}[permission.bash]\n"echo *" = "allow"\n` });
beforeAll(service.start);
afterAll(service.close);

const approver = "approver-token-for-tests";
const uid = `${process.getuid?.()}`;
let place: AgentPlace;
beforeEach(async () => {
  place = await createPlace(service.workspace);
  const bin = join(place.home, "bin");
  await mkdir(bin);
  const programs = { toolgate: `exec ${ownProgram.join(" ")} "$@"`, npx: 'shift; exec toolgate "$@"' };
  for (const [name, line] of Object.entries(programs)) {
    await writeFile(join(bin, name), `#!/bin/sh\n${line}\n`);
    await chmod(join(bin, name), 0o755);
  }
  await writeFile(join(place.home, ".toolgate-host"), "host-token-for-tests", { mode: 0o600 });
});

/** Returns what a page shows, and remembers that it was used. */
function use(wanted: string | RegExp): string {
  const found = [...shown].find((each) => (typeof wanted === "string" ? each === wanted : wanted.test(each)));
  if (found === undefined) throw new Error(`no page shows ${wanted}`);
  used.add(found);
  return found;
}

/** Puts the parts of this machine in place of those of the page. */
function here(shownText: string): string {
  return shownText
    .replaceAll("/usr/bin/node /usr/lib/node_modules/toolgate/bin/toolgate.js", ownProgram.join(" "))
    .replaceAll("http://127.0.0.1:7420", service.url)
    .replaceAll("/home/ann/", `${place.home}/`)
    .replaceAll("--uid 999", `--uid ${uid}`)
    .replaceAll('"--uid","999"', `"--uid","${uid}"`);
}

const environment = (env: Readonly<Record<string, string>> = {}) => ({
  HOME: place.home,
  PATH: `${place.home}/bin:/usr/local/bin:/usr/bin:/bin`,
  ...env,
});

/** Starts a command at a terminal, in the workspace. */
function start(command: string, env: Readonly<Record<string, string>>) {
  return startProgramAtTerminal(["sh", "-c", `cd ${service.workspace} && ${command}`], environment(env));
}

const asApprover = () => ({ TOOLGATE_URL: service.url, TOOLGATE_TOKEN: approver });

/** Connects an agent as a page shows it, and confirms the changes. */
async function connect(kind: string): Promise<void> {
  const { child, sees, finished } = start(use(`toolgate connect ${kind}`), asApprover());
  await sees("[y/N]");
  child.stdin?.write("y\r");
  expect(await finished).toMatchObject({ code: 0 });
}

const bash = (command: string) => ({ tool: "Bash", input: { command, description: "prints" } });
/** A use that asks, also by the rules of Claude Code itself, and whose output shows that it ran. */
const asking = () => serveAnthropic([["", [bash("touch page-marker; expr 123456 + 654321")]]]);

async function expectRun(model: MockModel, running: Promise<unknown>): Promise<void> {
  await answerNext(service, PermissionReply.ONCE);
  await running;
  expect(model.results.join()).toContain("777777");
}

test("claude-code.md: connect writes the hooks, and toolgate claude runs with them", async () => {
  await connect("claude");
  expect(await readFile(join(place.home, ".claude/settings.json"), "utf8")).toMatch(/hook\S+ claude --server/);
  await symlink(agentPrograms.claude, join(place.home, "bin/claude"));
  const model = await asking();
  const { finished } = start(use(/^toolgate claude -- /), claudeEnv(model));
  await expectRun(model, finished);
  expect(await finished).toMatchObject({ code: 0, stdout: expect.stringContaining("done") });
});

test("claude-code.md: hooks that are written by hand ask", async () => {
  const settings = join(place.home, "by-hand.json");
  await writeFile(settings, here(use(/"PreToolUse"/)));
  const model = await asking();
  await expectRun(model, runClaude(place, model, ["--settings", settings, "--allowedTools", "Bash"]));
});

test("claude-code.md: the permission prompt tool asks", async () => {
  await symlink(agentPrograms.claude, join(place.home, "bin/claude"));
  const model = await asking();
  const { finished } = start(here(use(/--permission-prompt-tool/)), claudeEnv(model));
  await expectRun(model, finished);
});

test("claude-agent-sdk.md: what Claude's own rules leave open asks, and without a service does not run", async () => {
  const page = await readFile(resolve(import.meta.dirname, "../../docs/clients/claude-agent-sdk.md"), "utf8");
  const [, code = ""] = /^```ts\n([\s\S]*?)^```/m.exec(page) ?? [];
  await mkdir(join(place.home, "node_modules"));
  await symlink(dirname(dirname(agentPrograms.claude)), join(place.home, "node_modules/@anthropic-ai"));
  await symlink(resolve(dirname(programEntry()), ".."), join(place.home, "node_modules/toolgate"));
  await writeFile(join(place.home, "package.json"), '{ "type": "module" }');
  await writeFile(join(place.home, "agent.ts"), code);
  const run = (model: MockModel, url: string) => {
    const env = { ...claudeEnv(model), TOOLGATE_URL: url, TOOLGATE_TOKEN: "host-token-for-tests" };
    return start(`${process.execPath} ${place.home}/agent.ts go`, env).finished;
  };
  const model = await asking();
  const running = run(model, service.url);
  await expectRun(model, running);
  expect((await running).stdout).toContain("done");
  const alone = await asking();
  await run(alone, "http://127.0.0.1:9");
  expect(alone.results).toHaveLength(1);
  expect(alone.results.join()).not.toContain("777777");
});

test.each([
  ["stdio", /"npx"/],
  ["HTTP", /"type": "http"/],
])("mcp.md: the entry for %s serves our tools", async (_transport, entry) => {
  const env = { ...environment(), TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" };
  const config = join(place.home, "mcp.json");
  await writeFile(config, here(use(entry)));
  const model = await serveAnthropic([["", [{ ...bash("echo one two"), tool: "mcp__toolgate__bash" }]]]);
  const args = ["--mcp-config", config, "--strict-mcp-config", "--allowedTools", "mcp__toolgate"];
  await runClaude(place, model, args, { ...env, ENABLE_TOOL_SEARCH: "false" });
  expect(model.results.join()).toContain("one two");
  use("toolgate mcp");
});

test("mcp.md: a token is created, and the settings are valid", async () => {
  const { stdout } = await start(use("toolgate token create --role caller"), asApprover()).finished;
  expect(stdout).toMatch(/tg_[\w-]{20,}/);
  const file = join(place.home, "toolgate.toml");
  await writeFile(file, use(/^mcp_hold_ms/));
  expect(await start(`toolgate check-config ${file}`, {}).finished).toMatchObject({ code: 0 });
});

test("opencode.md: connect writes the plugin, and the check finds nothing", async () => {
  await connect("opencode");
  const plugin = await readFile(join(place.home, ".config/opencode/plugin/toolgate.js"), "utf8");
  expect(plugin).toMatch(/hook[^"]+","opencode"/);
  const { code, stdout } = await start(use("toolgate connect opencode --check"), asApprover()).finished;
  expect({ code, stdout }).toMatchObject({ code: 0, stdout: expect.not.stringContaining("problem") });
});

test("no page shows another command", () => {
  // What changes the machine, or needs plugins of a project, runs in connect.test.ts.
  const elsewhere = /^sudo |--accept-plugins/;
  expect([...shown].filter((each) => !used.has(each) && !elsewhere.test(each))).toEqual([]);
});
