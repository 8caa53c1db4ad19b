import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createService } from "../e2e/service.ts";
import { layWire } from "./wire.ts";

const root = join(import.meta.dirname, "../..");
const page = readFileSync(join(root, "examples/README.md"), "utf8");
/** The page's commands, by language: what prepares it, and at the end what runs it. */
const languages = [...page.matchAll(/^## (.+)\n[\s\S]*?^```sh\n([\s\S]*?)^```/gm)].map(
  ([, language = "", commands = ""]) => {
    const lines = commands.trimEnd().split("\n");
    return { language, prepare: lines.slice(0, -1), run: lines.at(-1) ?? "" };
  },
);

const service = createService();

beforeAll(async () => {
  await Promise.all([service.start(), ...languages.map(({ prepare }) => shell(prepare.join(" && ") || "true"))]);
  await writeFile(join(service.workspace, "job.sh"), job);
});
afterAll(service.close);

/** Says that it ran, waits until it may end, and says so. */
const job = 'echo ran >> "ledger-$1"\nuntil [ -e "go-$1" ]; do sleep 0.05; done\necho "hello from $1"\n';

async function shell(commands: string): Promise<void> {
  await promisify(execFile)("sh", ["-c", commands], { cwd: root, maxBuffer: 64 * 1_048_576 });
}

function start(run: string, name: string, url: string) {
  const child = spawn("sh", ["-c", run.replace("'git status'", `'sh job.sh ${name}'`)], {
    cwd: root,
    env: {
      ...process.env,
      TOOLGATE_URL: url,
      TOOLGATE_CALLER_TOKEN: "caller-token-for-tests",
      TOOLGATE_APPROVER_TOKEN: "approver-token-for-tests",
    },
  });
  const out = collect(child, "stdout");
  const err = collect(child, "stderr");
  const ended = once(child, "close").then(([code]) => ({
    code,
    events: eventsOf(out.text()),
    all: out.text(),
    err: err.text(),
  }));
  async function sees(stream: typeof out, text: string): Promise<void> {
    while (!stream.text().includes(text)) {
      const news = await Promise.race([once(child, "printed"), ended]);
      if (!Array.isArray(news)) throw new Error(`it ended without "${text}":\n${news.all}${news.err}`);
    }
  }
  return { ended, prints: (text: string) => sees(out, text), reports: (text: string) => sees(err, text) };
}

function collect(child: ChildProcess, stream: "stdout" | "stderr"): { text(): string } {
  let text = "";
  child[stream]?.setEncoding("utf8").on("data", (piece: string) => {
    text += piece;
    child.emit("printed");
  });
  return { text: () => text };
}

/** Lines that it prints as the agent; those as the person come in between, at another moment each time. */
function eventsOf(text: string): string[] {
  return text.split("\n").filter((line) => line.startsWith("#"));
}

describe.each(languages)("the example in $language", ({ language, run }) => {
  const name = language.replaceAll(/\W+/g, "-").toLowerCase();
  const events = [
    "#1 pending",
    "#2 asks: bash",
    "#3 answered by approver",
    "#4 running",
    `#5 output: hello from ${name}`,
    "#6 completed",
  ];

  test("executes, approves with a second token, and goes on after a cut: each event once, in order", async () => {
    const wire = await layWire(service);
    try {
      const client = start(run, name, wire.url);
      await client.prints("#4 running");
      wire.cut();
      await client.reports("going on after #4");
      await writeFile(join(service.workspace, `go-${name}`), "");
      const { code, events: printed, all } = await client.ended;
      expect(printed).toEqual(events);
      expect(all).toContain(`person: bash sh job.sh ${name} may run once`);
      expect(code).toBe(0);
    } finally {
      await wire.close();
    }
  });

  test("prints the same when it is run again, and runs nothing", async () => {
    const { code, events: printed } = await start(run, name, service.url).ended;
    expect(printed).toEqual(events);
    expect(code).toBe(0);
    expect(await readFile(join(service.workspace, `ledger-${name}`), "utf8")).toBe("ran\n");
  });
});

test("there is an example for each kind of client", () => {
  expect(languages.map(({ language }) => language)).toEqual([
    "Python",
    "Go",
    "TypeScript, Connect-Web",
    "TypeScript, grpc-js",
  ]);
});

test.each([
  ["examples/python/.venv/bin/python examples/python/call.py", "1 pending\n2 running\n3 completed\n"],
  ["go -C examples/go run ./call", "hello\n"],
])("the least client works: %s", async (run, printed) => {
  const env = { ...process.env, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" };
  const { stdout } = await promisify(execFile)("sh", ["-c", run], { cwd: root, env });
  expect(stdout).toBe(printed);
});
