import { execFile, spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { connect, type PermissionRequest, type ToolgateClient } from "../../src/client/client.ts";
import { useService } from "../e2e/service.ts";
import { programEntry } from "../main.ts";
import { layWire, type Wire } from "./wire.ts";
import { useWorkerExample } from "./worker-example.ts";
import { kitWorkers, runKit } from "./worker-kit.ts";

const root = join(import.meta.dirname, "../..");
const sdk = join(root, "sdk/go");
const page = await readFile(join(root, "docs/clients/go.md"), "utf8");
const service = useService();
let wire: Wire;
let folder: string;

beforeAll(async () => {
  wire = await layWire(service);
  folder = await mkdtemp(join(tmpdir(), "toolgate-go-"));
});
afterAll(async () => {
  await wire.close();
  await rm(folder, { recursive: true, force: true });
});

async function run(command: string, args: readonly string[], cwd: string): Promise<string> {
  const env = { ...process.env, TOOLGATE_URL: wire.url };
  // What fails tests is on stdout.
  const whole = `exec ${[command, ...args.map((arg) => `'${arg}'`)].join(" ")} 2>&1`;
  const { stdout } = await promisify(execFile)("sh", ["-c", whole], { cwd, env }).catch((error) => {
    throw new Error(`${command} ${args.join(" ")} failed:\n${error.stdout}`);
  });
  return stdout;
}

/** Returns a program of the page. */
const programOf = (name: string) =>
  new RegExp(`^\`\`\`go\\n// ${name}.go\\n([\\s\\S]*?)^\`\`\``, "m").exec(page)?.[1] ?? "";

/** Makes a module of a program of the page, with the commands of the page, and builds it. */
async function build(name: string): Promise<string> {
  const [, commands = ""] = /^```sh\n([\s\S]*?)^```/m.exec(page) ?? [];
  const place = join(folder, name);
  await run("mkdir", [place], folder);
  await writeFile(join(place, `${name}.go`), programOf(name));
  await run("sh", ["-ec", commands.replace("/path/to/the/checkout", root).replace(/^go run .*/m, "")], place);
  await run("go", ["build", "-o", "program", "."], place);
  return join(place, "program");
}

function start(program: string, token: string) {
  const env = { PATH: process.env.PATH, TOOLGATE_URL: wire.url, TOOLGATE_TOKEN: token };
  return spawn(program, { env, stdio: ["ignore", "pipe", "pipe"] });
}

async function restart(): Promise<void> {
  await service.kill();
  wire.cut();
  await service.start();
}

async function nextAsk({ asks }: ToolgateClient, sessionId: string): Promise<PermissionRequest> {
  for await (const ask of asks()) if (ask.sessionId === sessionId) return ask;
  throw new Error("the stream ended");
}

/** The detector of data races compiles everything once more, which takes a minute and a half on two cores. */
const race = process.env.TOOLGATE_LONG === "1" ? ["-race"] : [];

test("the tests of the Go module pass", async () => {
  expect(await run("go", ["test", ...race, "-count=1", "./..."], sdk)).toMatch(/^ok\s+toolgate\s/m);
  expect(await run("gofmt", ["-l", "."], sdk)).toBe("");
});

test("the committed code is what the generators make", async () => {
  const listed = () => run("sh", ["-c", "find sdk/go/gen -type f -exec sha256sum {} + | sort"], root);
  const before = await listed();
  await run("npm", ["run", "-s", "generate:go"], root);
  expect(await listed()).toBe(before);
});

test("the caller of the page gets its output after kill -9 of the service in the wait for an approver", async () => {
  const printed = text(start(await build("call"), "caller-token-for-tests").stdout);
  const approver = connect({ url: wire.url, token: "approver-token-for-tests" });
  await nextAsk(approver, "ses_example");
  await restart();
  await approver.reply(await nextAsk(approver, "ses_example"), "once", { wholeCall: true });
  expect(await printed).toMatch(/^git version \d/);
  approver.close();
});

test("check 2 in Go: the worker of the page answers `toolgate call`, across kill -9 of the service in a wait, and drains", async () => {
  const command = [await build("worker")] satisfies [string];
  const program = programOf("worker");
  const toolgate = [process.execPath, programEntry()] satisfies [string, string];
  const at = { url: wire.url, data: service.data, restart };
  await useWorkerExample(at, { page, program, command, folder, toolgate });
});

test("the Go SDK passes the conformance kit for workers", async () => {
  const program = join(folder, "kit-worker");
  await run("go", ["build", "-o", program, "."], join(kitWorkers, "go"));
  expect(await runKit([program])).toBe("27 passed, 0 failed");
});
