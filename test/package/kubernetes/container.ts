/**
 * Plays a pod: starts the service as its container does, waits for its probes, runs the other commands, and ends it as the kubelet
 * does. It runs inside a sandbox with the read-only root, the user and the mounts of the container.
 */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { get as getInClear } from "node:http";
import { get as getByTls } from "node:https";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";

/** What the container of a replica does, and what is done to it. */
export interface Life {
  readonly redis: boolean;
  readonly serve: Command;
  readonly preStop: readonly string[];
  readonly probes: readonly string[];
  /** Where Prometheus reads. */
  readonly metrics: { readonly url: string; readonly token: string; readonly serverName: string };
  /** Run while the service runs. */
  readonly clients: readonly Command[];
}

export interface Command {
  readonly command: readonly string[];
  readonly env: Record<string, string>;
}

const life: Life = JSON.parse(process.argv[2] ?? "");
const toolgate = [process.execPath, "/opt/package/node_modules/toolgate/bin/toolgate.js"];
if (life.redis) spawn("redis-server", ["--save", "", "--maxmemory-policy", "noeviction"], { stdio: "ignore" });
const [program = "", ...args] = [...toolgate, ...life.serve.command];
const service = spawn(program, args, { env: life.serve.env, stdio: ["ignore", "inherit", "inherit"] });
const ended = once(service, "exit").then(([code]) => code);
const early = ended.then((code) => {
  throw new Error(`the service ended with ${code}`);
});
early.catch(() => undefined);
for (const url of life.probes) await Promise.race([early, answers(url)]);
const printed: string[] = [];
for (const { command, env } of life.clients) {
  const [name = "", ...rest] =
    command[0] === "node" ? [process.execPath, ...command.slice(1)] : [...toolgate, ...command];
  const { stdout } = await promisify(execFile)(name, rest, { env });
  printed.push(stdout.trim());
}
const { status, body: metrics } = await read(life.metrics.url);
const [stop = "", ...seconds] = life.preStop;
// The kubelet waits, this test does not.
if (stop !== "sleep" || seconds.length !== 1) throw new Error(`the container ends by ${life.preStop.join(" ")}`);
service.kill("SIGTERM");
process.stdout.write(`\n${JSON.stringify({ printed, status, metrics, exitCode: await ended })}\n`);
process.exit();

async function answers(url: string): Promise<void> {
  while ((await read(url).catch(() => undefined))?.status !== 200) await pause(50);
}

async function read(url: string): Promise<{ status: number; body: string }> {
  const headers = { authorization: `Bearer ${life.metrics.token}` };
  const get = url.startsWith("https:") ? getByTls : getInClear;
  const [response] = await once(get(url, { headers, agent: false, servername: life.metrics.serverName }), "response");
  return { status: response.statusCode, body: Buffer.concat(await response.toArray()).toString() };
}
