/**
 * Plays a container: starts the service, waits for its probes, runs the other commands, takes one call through its approval, and
 * ends the service as the kubelet does. It runs inside a sandbox with the read-only root, the user and the mounts of the container.
 */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { get as getInClear } from "node:http";
import { get as getByTls } from "node:https";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";
import { callAndApprove } from "../approved-call.ts";

/** What the container of a replica does, and what is done to it. */
export interface Life {
  readonly redis: boolean;
  /** The command line of the product, and the one that starts the container, to which `serve` is added. */
  readonly toolgate: readonly [string, ...string[]];
  readonly entrypoint: readonly [string, ...string[]];
  readonly serve: Command;
  readonly preStop: readonly string[];
  readonly probes: readonly string[];
  /** Succeeds once the service is ready, where an image has such a command. */
  readonly healthcheck?: Command;
  /** Where Prometheus reads. */
  readonly metrics?: { readonly url: string; readonly token: string; readonly serverName: string };
  /** Run while the service runs; the last one prints the token of an approver. */
  readonly clients: readonly Command[];
  /** The environment of a caller; an approver has another token in it. */
  readonly caller: Record<string, string>;
}

export interface Command {
  readonly command: readonly string[];
  readonly env: Record<string, string>;
}

const life: Life = JSON.parse(process.argv[2] ?? "");
const { toolgate, entrypoint, metrics } = life;
if (life.redis) spawn("redis-server", ["--save", "", "--maxmemory-policy", "noeviction"], { stdio: "ignore" });
const [program, ...words] = entrypoint;
const service = spawn(program, [...words, ...life.serve.command], {
  env: life.serve.env,
  stdio: ["ignore", "inherit", "inherit"],
});
const ended = once(service, "exit").then(([code]) => code);
const early = ended.then((code) => {
  throw new Error(`the service ended with ${code}`);
});
early.catch(() => undefined);
for (const url of life.probes) await Promise.race([early, answers(url)]);
if (life.healthcheck !== undefined) await Promise.race([early, succeeds(life.healthcheck)]);
const printed: string[] = [];
for (const { command, env } of life.clients) {
  printed.push((await run({ command: command[0] === "node" ? command : [...toolgate, ...command], env })).trim());
}
const approver = { ...life.caller, TOOLGATE_TOKEN: printed.at(-1) };
const called = await callAndApprove(toolgate, "id -u", { caller: life.caller, approver });
const scraped = metrics && (await read(metrics.url));
const [stop = "", ...seconds] = life.preStop;
// The kubelet waits, this test does not.
if (stop !== "sleep" || seconds.length !== 1) throw new Error(`the container ends by ${life.preStop.join(" ")}`);
service.kill("SIGTERM");
process.stdout.write(`\n${JSON.stringify({ printed, called, scraped, exitCode: await ended })}\n`);
process.exit();

async function run({ command: [name = "", ...args], env }: Command): Promise<string> {
  return (await promisify(execFile)(name === "node" ? process.execPath : name, args, { env })).stdout;
}

async function succeeds(command: Command): Promise<void> {
  while ((await run(command).catch(() => undefined)) === undefined) await pause(50);
}

async function answers(url: string): Promise<void> {
  while ((await read(url).catch(() => undefined))?.status !== 200) await pause(50);
}

async function read(url: string): Promise<{ status: number; body: string }> {
  const headers = { authorization: `Bearer ${metrics?.token}` };
  const get = url.startsWith("https:") ? getByTls : getInClear;
  const [response] = await once(get(url, { headers, agent: false, servername: metrics?.serverName }), "response");
  return { status: response.statusCode, body: Buffer.concat(await response.toArray()).toString() };
}
