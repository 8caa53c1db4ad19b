import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Takes a call through the main job with command lines alone: a caller makes it, with the given client or as a command of bash with
 * ours; an approver sees its request and approves it. Returns what the client printed. It imports nothing of the checkout, so it
 * also runs inside a container.
 */
export async function callAndApprove(
  toolgate: readonly [string, ...string[]],
  client: string | readonly string[],
  { caller, approver }: { caller: Environment; approver: Environment },
): Promise<string> {
  const start = (env: Environment, [program = "", ...args]: readonly string[]) =>
    spawn(program, args, { env: { ...env }, stdio: ["ignore", "pipe", "pipe"] });
  const asks = start(approver, [...toolgate, "asks", "--watch", "--json"]);
  asks.stderr.resume();
  const ours = [...toolgate, "call", "bash", JSON.stringify({ command: client })];
  const call = start(caller, typeof client === "string" ? ours : client);
  const [printed, problems, ended] = [text(call.stdout), text(call.stderr), once(call, "close")];
  const early = ended.then(async ([code]) => {
    throw new Error(`the call ended with ${code} before it asked: ${await problems}`);
  });
  early.catch(() => undefined);
  const [line] = await Promise.race([once(createInterface(asks.stdout), "line"), early]);
  asks.kill();
  const { id } = JSON.parse(line).permissionAsked;
  const [program, ...words] = toolgate;
  await promisify(execFile)(program, [...words, "reply", id, "once", "--whole-call"], { env: { ...approver } });
  const [code] = await ended;
  if (code !== 0) throw new Error(`the approved call ended with ${code}: ${await printed}${await problems}`);
  return await printed;
}
