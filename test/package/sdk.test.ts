import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { connect, type PermissionRequest, type ToolgateClient } from "../../src/client/client.ts";
import { useWorkerExample } from "../clients/worker-example.ts";

/** The programs of docs/clients/typescript.md run beside the installed package, as a user runs them. */
const page = await readFile(resolve(import.meta.dirname, "../../docs/clients/typescript.md"), "utf8");
const programs = new Map(
  [...page.matchAll(/^```ts\n\/\/ (\S+)\n([\s\S]*?)^```/gm)].map(([, name = "", code = ""]) => [name, code]),
);
const { folder } = inject("installed");

const settings = `
[[token]]
id = "caller"
roles = ["caller"]
value = "caller-token-for-tests"
[[token]]
id = "approver"
roles = ["approver"]
value = "approver-token-for-tests"
`;

let home: string;
let url: string;
let service: ChildProcess | undefined;

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), "toolgate-sdk-"));
  await mkdir(join(home, "work"));
  await writeFile(join(home, "toolgate.toml"), settings);
  for (const [name, code] of programs) await writeFile(join(folder, name), code);
  url = `http://127.0.0.1:${await freePort()}`;
  await serve();
});
afterAll(async () => {
  await kill();
  await rm(home, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  await new Promise((closed) => server.close(closed));
  return typeof address === "object" && address !== null ? address.port : 0;
}

/** Starts the installed program, each time at the same address. */
async function serve(): Promise<void> {
  const places = [
    "--workspace",
    join(home, "work"),
    "--data",
    join(home, "data"),
    "--config",
    join(home, "toolgate.toml"),
  ];
  const args = ["serve", "--json", "--listen", new URL(url).host, ...places];
  service = spawn(process.execPath, [join(folder, "node_modules/toolgate/bin/toolgate.js"), ...args], {
    cwd: folder,
    env: { PATH: process.env.PATH, HOME: home },
    stdio: ["ignore", "pipe", "ignore"],
  });
  await once(createInterface({ input: service.stdout ?? process.stdin }), "line");
}

async function kill(): Promise<void> {
  if (service === undefined) return;
  const ended = once(service, "exit");
  service.kill("SIGKILL");
  await ended;
}

/** Starts a program of the page. */
function start(name: string, token: string) {
  return spawn(process.execPath, [name], {
    cwd: folder,
    env: { PATH: process.env.PATH, TOOLGATE_URL: url, TOOLGATE_TOKEN: token },
    stdio: ["ignore", "pipe", "pipe"],
  });
}

/** Waits for the next open permission request. */
async function nextAsk({ asks }: ToolgateClient): Promise<PermissionRequest> {
  for await (const ask of asks()) return ask;
  throw new Error("the stream ended");
}

test("the caller of the page gets its output after kill -9 of the service in the wait for an approver", async () => {
  expect(programs.get("call.ts")?.split("\n").length).toBeLessThanOrEqual(16);
  const printed = text(start("call.ts", "caller-token-for-tests").stdout);
  const approver = connect({ url, token: "approver-token-for-tests" });
  await nextAsk(approver);
  await kill();
  await serve();
  await approver.reply(await nextAsk(approver), "once", { wholeCall: true });
  expect(await printed).toMatch(/^git version \d/);
  approver.close();
});

test("check 2 in TypeScript: the worker of the page answers `toolgate call`, across kill -9 of the service in a wait, and drains", async () => {
  const restart = async () => {
    await kill();
    await serve();
  };
  await useWorkerExample(
    { url, data: join(home, "data"), restart },
    {
      ...{ page, folder, program: programs.get("worker.ts") ?? "" },
      command: [process.execPath, "worker.ts"],
      toolgate: [process.execPath, join(folder, "node_modules/toolgate/bin/toolgate.js")],
    },
  );
});
