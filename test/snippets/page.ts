import assert from "node:assert/strict";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { parse, stringify, type TomlTable } from "smol-toml";
import { isCommandListed, isListed } from "./not-run.ts";
import { type Block, blocksOf, commandsOf, patternOf } from "./pages.ts";
import { createReader } from "./reader.ts";

// Runs the blocks of one page, in order. run.ts starts it in private namespaces.
const [page = "", machine = "", setupSeconds = ""] = process.argv.slice(2);
const checkout = join(machine, "checkout");
const tarball = join(machine, "toolgate-0.1.0.tgz");
const blocks = blocksOf(checkout, page);
const reader = await createReader(machine);
/** The page writes one configuration, part by part, and tool files beside it. */
const isToolsPage = page === "docs/tools.md";
const cwd = isToolsPage
  ? join(reader.home, ".config/toolgate")
  : blocks.some(({ text }) => text.includes("/path/to/"))
    ? join(reader.home, "example")
    : checkout;
await mkdir(cwd, { recursive: true });
const began = performance.now();
let count = 0;
let isFirst = page === "README.md";
/** The configuration was changed and is not in force yet. */
let isChanged = false;
/** Conditions that a page supposes. */
const given: Readonly<Record<string, readonly string[]>> = {
  "docs/tools.md": [
    `echo '{ "version": "1.2.3" }' > ~/project/project.json`,
    `mkdir node_modules && ln -s ${machine}/installed/lib/node_modules/toolgate node_modules/toolgate`,
    `export PATH=${dirname(process.execPath)}:$PATH`,
    "mkdir -p ~/.local/share/toolgate/keys && (umask 077; echo key > ~/.local/share/toolgate/keys/sourcegraph)",
  ],
  "docs/fewer-questions.md": ["toolgate serve --workspace ~/project", `toolgate call bash '{"command": "git status"}'`],
  "docs/configuration.md": ["export CI_WORKER_TOKEN=$(openssl rand -hex 32)"],
  "docs/clients.md": [
    "export TOOLGATE_URL=http://127.0.0.1:7420",
    "APPROVER_TOKEN=$(toolgate token create --role approver --data ~/.local/share/toolgate)",
    "TOOLGATE_TOKEN=$(toolgate token create --role host --data ~/.local/share/toolgate)",
  ],
};

/** Runs a block, and returns what it printed. */
async function runBlock(block: Block): Promise<string> {
  const { language, text, line, follows } = block;
  switch (language) {
    case "sh": {
      if (isChanged) await reader.run("toolgate serve --workspace ~/project", cwd);
      isChanged = false;
      let all = "";
      for (const command of commandsOf(placed(text)))
        if (!isCommandListed(page, command)) all += await runCommand(command);
      return all;
    }
    case "text":
      // Other texts show what the words around them describe.
      if (follows) assert.match(printed, patternOf(text));
      return "";
    case "toml": {
      if (isToolsPage) return await addToConfiguration(text);
      const file = join(reader.home, `${page.replaceAll(/\W/g, "-")}-${line}.toml`);
      await writeFile(file, text);
      await writeFile(join(cwd, "toolgate.toml"), text);
      return await reader.run(`toolgate check-config ${file}`, cwd);
    }
    case "json":
      return await runJson(JSON.parse(text));
    case "ts":
    case "go":
    case "python":
      return await runProgram(block);
    default:
      throw new Error(`blocks of the language "${language}" neither run nor are listed in test/snippets/not-run.ts`);
  }
}

/** Runs a command; reports after which one, and when, the README has led to a call. */
async function runCommand(command: string): Promise<string> {
  count += 1;
  const out = await reader.run(await reader.withRequest(command), cwd);
  if (isFirst && /^npx toolgate call /.test(command)) {
    isFirst = false;
    // npm ci has run before: the setup is that line.
    const minutes = (Number(setupSeconds) + (performance.now() - began) / 1_000) / 60;
    console.log(`first approved call: ${count + 1} commands, ${minutes.toFixed(1)} minutes`);
    assert.ok(count + 1 <= 5, `the README needs ${count + 1} commands for a first call`);
    assert.match(out, /On branch/);
  }
  return out;
}

const placed = (text: string) =>
  text
    .replaceAll("/path/to/the/checkout", checkout)
    .replaceAll("/path/to/toolgate-0.1.0.tgz", tarball)
    .replaceAll("/home/me/shop", join(reader.home, "project"));

/** Asks the MCP server of a client's configuration for its name. */
async function runJson({ mcpServers: { toolgate } }: McpConfiguration): Promise<string> {
  const params = { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "test", version: "1" } };
  const request = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "initialize", params });
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    ...toolgate.headers,
  };
  const options = Object.entries(headers).map(([name, value]) => `-H "${name}: ${value}"`);
  const token = "TOOLGATE_TOKEN=$(cat ~/.local/share/toolgate/tokens/caller)";
  const answer = await reader.run(
    "url" in toolgate
      ? `${token}; curl -sf ${toolgate.url} ${options.join(" ")} -d '${request}'`
      : `echo '${request}' | ${toolgate.command} ${toolgate.args?.join(" ")}`,
    cwd,
  );
  assert.ok(answer.includes('"serverInfo"'), answer);
  return answer;
}

interface McpConfiguration {
  mcpServers: { toolgate: { command?: string; args?: string[]; url?: string; headers?: Record<string, string> } };
}

/** Adds what a block shows to the one configuration of the page, as its reader does; the next command starts the service with it. */
async function addToConfiguration(text: string): Promise<string> {
  const file = join(cwd, "toolgate.toml");
  const known = parse(await readFile(file, "utf8").catch(() => ""));
  await writeFile(file, stringify(merged(known, parse(text))));
  isChanged = true;
  return "";
}

function merged(known: TomlTable, added: TomlTable): TomlTable {
  const isTable = (value: unknown): value is TomlTable => Object.getPrototypeOf(value ?? 0) === Object.prototype;
  const join = ([key, value]: [string, TomlTable[string]]) => {
    const before = known[key];
    return [key, isTable(before) && isTable(value) ? merged(before, value) : value] as const;
  };
  return { ...known, ...Object.fromEntries(Object.entries(added).map(join)) };
}

/** Saves a program, and runs it unless a later command of the page does. */
async function runProgram({ language, text, line }: Block): Promise<string> {
  const [, named] = /^(?:\/\/|#) (\S+\.\w+)\n/.exec(text) ?? [];
  const known = saved.find((program) => program.page === page && text.startsWith(program.begins));
  const name = named ?? known?.name;
  if (name !== undefined) {
    await mkdir(dirname(join(cwd, name)), { recursive: true });
    await writeFile(join(cwd, name), text);
    // The service loads it.
    if (/^(tool|plugins)\//.test(name)) return "";
    const command =
      known?.run ??
      (blocks.some((block) => block.language === "sh" && block.text.includes(name))
        ? undefined
        : runners[language]?.(name));
    return command === undefined ? "" : await reader.run(command, cwd);
  }
  const fragment = fragments[language];
  if (fragment === undefined) throw new Error("the program has no name in its first line");
  const directory = join(cwd, `fragment-${line}`);
  await mkdir(directory);
  await writeFile(join(directory, fragment.file), fragment.around(text));
  const command = fragment.run(`fragment-${line}/${fragment.file}`);
  if (!/\breply\(/i.test(text)) return await reader.run(command, cwd);
  // It answers for ever: it ends with the answer of a request that only it answers.
  return await reader.answerBy(
    `export TOOLGATE_TOKEN=$(env -u TOOLGATE_TOKEN toolgate token create --role approver); ${command}`,
    cwd,
  );
}

const runners: Readonly<Record<string, (file: string) => string>> = {
  ts: (file) => `npx node ${file}`,
  go: (file) => `go run ${file}`,
  python: (file) => `python ${file}`,
};

/** Programs without a name in their first line. */
const saved: readonly { page: string; begins: string; name: string; run?: string }[] = [
  { page: "README.md", begins: "import toolgate", name: "call.py", run: "python call.py" },
  {
    ...{ page: "docs/clients.md", begins: "import { createClient }", name: "examples/of-the-page.ts" },
    run: "TOOLGATE_TOKEN=$(cat ~/.local/share/toolgate/tokens/caller) npx node examples/of-the-page.ts",
  },
  {
    page: "docs/clients/python.md",
    begins: '"""Runs a command',
    name: "call.py",
    run: "python call.py 'git --version' call_1",
  },
  { page: "docs/clients/python.md", begins: "from typing", name: "worker.py" },
  { page: "docs/clients/python.md", begins: "from toolgate.testing", name: "test_run.py", run: "python test_run.py" },
  {
    page: "docs/clients/python.md",
    begins: "import pytest",
    name: "test_gate.py",
    run: "pip install --quiet pytest; pytest -q test_gate.py",
  },
  { page: "sdk/python/README.md", begins: "import toolgate", name: "call.py", run: "python call.py" },
  {
    ...{ page: "sdk/python/README.md", begins: "from toolgate import serve", name: "greet.py" },
    run: "TOOLGATE_TOKEN=$(toolgate token create --role worker --tool greet) python greet.py",
  },
];

/** Lines around the parts of programs: the client of the page, and a call. */
const fragments: Readonly<Record<string, { file: string; around(text: string): string; run(file: string): string }>> = {
  ts: {
    file: "main.ts",
    around: (text) =>
      `import { connect } from "toolgate/client";\nconst toolgate = connect();\n${text}toolgate.close();\n`,
    run: (file) => `npx node ${file}`,
  },
  python: {
    file: "main.py",
    around: (text) =>
      `import os, toolgate\napprover_token = os.environ.get("TOOLGATE_TOKEN")\nclient = toolgate.Client()\n${text}client.close()\n`,
    run: (file) => `python -u ${file}`,
  },
  go: {
    file: "main.go",
    around: (text) => `package main
import ("context"; "fmt"; "os"; "toolgate")
func run(ctx context.Context, client *toolgate.Client, call toolgate.Call) error {
{
${text}
}
return nil
}
func main() {
  call := toolgate.Call{Tool: "bash", Input: map[string]any{"command": "git status"}}
  if err := run(context.Background(), toolgate.NewClient(toolgate.Options{}), call); err != nil {
    fmt.Fprintln(os.Stderr, err)
    os.Exit(1)
  }
}
`,
    run: (file) => `go mod tidy && go run ./${file}`,
  },
};

if (!blocks.some(({ text }) => /^[^#\n]*\b(toolgate serve|npm start)\b/m.test(text)))
  await reader.run("toolgate serve --workspace ~/project", cwd);
for (const line of given[page] ?? []) await reader.run(line, cwd);
let printed = "";
for (const block of blocks) {
  if (isListed(block)) continue;
  try {
    printed = await runBlock(block);
  } catch (error) {
    console.error(`${page}:${block.line}: ${error instanceof Error ? error.message : error}`);
    process.exit(1);
  }
}
if (isChanged) await reader.run("toolgate serve --workspace ~/project", cwd);
// Services and workers still run: they end with the namespace.
process.exit(0);
