import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { expect } from "vitest";
import { connect, type PermissionRequest, type ToolgateClient } from "../../src/client/client.ts";

/** A service at one address, with a caller, an approver, and no rule for `deploy`. */
export interface ExampleService {
  readonly url: string;
  readonly data: string;
  /** kill -9, and a start on the same data. */
  restart(): Promise<void>;
}

/** The example of a page in `docs/clients`, in the place where a user has it. */
export interface WorkerExample {
  /** Text of the page. */
  readonly page: string;
  /** The whole program. */
  readonly program: string;
  /** The command line that starts it. */
  readonly command: readonly [string, ...string[]];
  readonly folder: string;
  /** The command line of `toolgate`. */
  readonly toolgate: readonly [string, ...string[]];
}

const maxLines = 15;

/**
 * Does with an example of a worker what its page shows: creates the token, starts the worker, and makes a call with `toolgate call`. The
 * call asks, and asks again in the body; in this wait the service is killed.
 */
export async function useWorkerExample(service: ExampleService, example: WorkerExample): Promise<void> {
  const { page, program, command, folder, toolgate } = example;
  expect(program.trimEnd().split("\n").length, "lines of the example").toBeLessThanOrEqual(maxLines);
  const [, create = "", input = ""] =
    /^TOOLGATE_TOKEN=\$\(toolgate (token create .+?)\) .*\ntoolgate call deploy '(.+)'$/m.exec(page) ?? [];
  const run = (args: readonly string[], env: Record<string, string>) =>
    spawn(toolgate[0], [...toolgate.slice(1), ...args], {
      cwd: folder,
      env: { PATH: process.env.PATH, HOME: folder, TOOLGATE_DATA: service.data, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
  const creating = run(create.split(" "), {});
  const token = (await text(creating.stdout)).trim();
  const caller = connect({ url: service.url, token: "caller-token-for-tests" });
  const approver = connect({ url: service.url, token: "approver-token-for-tests" });
  const workers: ChildProcess[] = [];
  const startWorker = async () => {
    const worker = spawnWorker(command, folder, { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: token });
    workers.push(worker);
    await connected(worker);
    return worker;
  };
  try {
    const worker = await startWorker();
    const before = await definitionId(caller);
    const calling = run(["call", "deploy", input], {
      TOOLGATE_URL: service.url,
      TOOLGATE_TOKEN: "caller-token-for-tests",
    });
    const printed = Promise.all([text(calling.stdout), text(calling.stderr), once(calling, "close")]);
    await approver.reply(await nextAsk(approver, "deploy"), "once");
    await nextAsk(approver, "deploy_traffic");
    await service.restart();
    await approver.reply(await nextAsk(approver, "deploy_traffic"), "once");
    const [stdout, stderr, [code]] = await printed;
    expect({ stdout: stdout.trim().split("\n").at(-1), code }, stderr).toEqual({ stdout: "shop runs in dev", code: 0 });
    await stopWorker(worker);
    const next = await startWorker();
    expect(await definitionId(caller)).toBe(before);
    await stopWorker(next);
  } finally {
    for (const worker of workers) worker.kill("SIGKILL");
    for (const client of [caller, approver]) client.close();
  }
}

function spawnWorker([program, ...args]: WorkerExample["command"], cwd: string, variables: Record<string, string>) {
  const env = { PATH: process.env.PATH, HOME: cwd, ...variables };
  return spawn(program, args, { cwd, env, stdio: ["ignore", "inherit", "pipe"] });
}

/** Resolves when a worker reports that it is connected; throws with what it printed if it ends before. */
async function connected({ stderr }: ChildProcess): Promise<void> {
  let printed = "";
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  stderr?.on("data", (piece: Buffer) => {
    printed += piece;
    if (/^connected/m.test(printed)) resolve();
  });
  stderr?.on("end", () => reject(new Error(`the worker ended:\n${printed}`)));
  await promise;
}

async function definitionId({ tools }: ToolgateClient): Promise<string> {
  const { tools: listed } = await tools.listTools({});
  const [deploy] = listed.filter(({ name }) => name === "deploy");
  expect(deploy?.definitionId).toMatch(/^[0-9a-f]{32}$/);
  return deploy?.definitionId ?? "";
}

async function nextAsk({ asks }: ToolgateClient, permission: string): Promise<PermissionRequest> {
  for await (const ask of asks()) if (ask.permission === permission) return ask;
  throw new Error("the stream ended");
}

/** SIGTERM drains. */
async function stopWorker(worker: ChildProcess): Promise<void> {
  const ended = once(worker, "exit");
  worker.kill("SIGTERM");
  expect(await ended).toEqual([0, null]);
}
