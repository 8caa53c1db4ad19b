import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { z } from "zod";
import { isObject } from "../../core/json.ts";
import { within } from "../../core/within.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { type AgentUser, agentEnvironment } from "./agent-user.ts";

/** A value in the configuration of Codex, by its key in TOML; null removes it. */
export interface CodexEdit {
  keyPath: string;
  value: JsonValue;
}

/** The program of Codex, and the user as which it runs. */
interface Codex {
  readonly program: string;
  readonly user: AgentUser;
}

const hookList = z.object({
  data: z.array(
    z.object({
      hooks: z.array(
        z.object({
          key: z.string(),
          command: z.string().optional(),
          currentHash: z.string(),
          trustStatus: z.string(),
          enabled: z.boolean(),
        }),
      ),
    }),
  ),
});

const configuration = z.object({
  layers: z
    .array(z.object({ name: z.looseObject({ type: z.string() }), config: z.record(z.string(), z.json()) }))
    .nullable(),
});

/**
 * Writes values into the configuration of Codex, and lets it trust our hooks: it skips a hook that it does not trust, in silence.
 * Codex does both itself, so that its comments stay. The commands of our hooks contain `mark`. Returns the edits that undo both.
 */
export async function configureCodex(codex: Codex, edits: readonly CodexEdit[], mark: string) {
  return await withCodex(codex, async (call) => {
    const before = await ownValues(call, edits);
    const hooks = await listHooks(call, mark);
    const trusted = hooks
      .filter((hook) => problemOf(hook) !== undefined)
      .map(({ key, currentHash }) => ({
        keyPath: `hooks.state.${JSON.stringify(key)}`,
        value: { trusted_hash: currentHash },
      }));
    await write(call, [...edits, ...trusted]);
    const refused = (await listHooks(call, mark)).filter((hook) => problemOf(hook) !== undefined);
    if (hooks.length === 0 || refused.length > 0)
      throw new CommandError(
        "Codex did not take over the trust in our hooks, so its tools run unasked",
        "run `toolgate disconnect codex`, look at `codex doctor`, and connect it again",
        exitCodes.failed,
      );
    return [...before, ...trusted.map(({ keyPath }) => ({ keyPath, value: null }))];
  });
}

/** Writes values into the configuration of Codex. */
export const editCodex = (codex: Codex, edits: readonly CodexEdit[]): Promise<void> =>
  withCodex(codex, (call) => write(call, edits));

/** Names what keeps Codex from running our hooks, as it says itself. */
export async function codexProblems(codex: Codex, mark: string): Promise<string[]> {
  const hooks = await withCodex(codex, (call) => listHooks(call, mark));
  if (hooks.length === 0) return ["Codex does not list our hooks, so no tool asks"];
  return hooks.flatMap((hook) => problemOf(hook) ?? []);
}

function problemOf({ key, enabled, trustStatus }: { key: string; enabled: boolean; trustStatus: string }) {
  if (!enabled) return `Codex has the hook ${key} switched off`;
  return ["trusted", "managed"].includes(trustStatus) ? undefined : `Codex skips the hook ${key}: it is ${trustStatus}`;
}

async function listHooks(call: Call, mark: string) {
  const { data } = hookList.parse(await call("hooks/list", { cwds: [process.cwd()] }));
  return data.flatMap(({ hooks }) => hooks).filter(({ command }) => command?.includes(mark));
}

/** Returns what the user's own file has at the keys of some edits. */
async function ownValues(call: Call, edits: readonly CodexEdit[]): Promise<CodexEdit[]> {
  const { layers } = configuration.parse(await call("config/read", { includeLayers: true }));
  const own = layers?.find(({ name }) => name.type === "user")?.config ?? {};
  const at = (keyPath: string) =>
    keyPath
      .split(".")
      .reduce<JsonValue | undefined>((value, key) => (isObject(value) ? value[key] : undefined), own as JsonObject);
  return edits.map(({ keyPath }) => ({ keyPath, value: at(keyPath) ?? null }));
}

async function write(call: Call, edits: readonly CodexEdit[]): Promise<void> {
  const replacing = edits.map(({ keyPath, value }) => ({ keyPath, value, mergeStrategy: "replace" }));
  await call("config/batchWrite", { edits: replacing, reloadUserConfig: true });
}

type Call = (method: string, params: JsonObject) => Promise<unknown>;

/** Runs `codex app-server` for some requests, as JSON-RPC in lines. */
async function withCodex<T>({ program, user }: Codex, work: (call: Call) => Promise<T>): Promise<T> {
  const { uid, gid } = user;
  const child = spawn(program, ["app-server"], {
    env: agentEnvironment(user),
    stdio: ["pipe", "pipe", "ignore"],
    ...(process.getuid?.() === 0 && uid !== 0 && { uid, gid }),
  });
  const waiting = new Map<number, { resolve(result: unknown): void; reject(error: Error): void }>();
  const ended = new Promise<never>((_, reject) => {
    child.once("error", reject).once("close", () => reject(new Error("it ended without an answer")));
  });
  ended.catch(() => {});
  child.stdin.on("error", () => {});
  createInterface({ input: child.stdout }).on("line", (line) => {
    const { id, result, error } = answerIn(line);
    const one = id === undefined ? undefined : waiting.get(id);
    if (error !== undefined) one?.reject(new Error(error.message));
    else one?.resolve(result);
  });
  const send = (message: JsonObject) => child.stdin.write(`${JSON.stringify(message)}\n`);
  const call: Call = (method, params) => {
    const id = waiting.size + 1;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    waiting.set(id, { resolve, reject });
    send({ id, method, params });
    return within(maxAnswerMs, Promise.race([promise, ended]));
  };
  try {
    await call("initialize", { clientInfo: { name: "toolgate", version: "1" } });
    send({ method: "initialized" });
    return await work(call);
  } catch (cause) {
    if (cause instanceof CommandError) throw cause;
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new CommandError(
      `${program} app-server does not do what is needed of it: ${why}`,
      "look at `codex doctor`; Codex 0.169 is known to work",
      exitCodes.failed,
      { cause },
    );
  } finally {
    child.kill();
    const force = setTimeout(() => child.kill("SIGKILL"), maxEndMs);
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit").catch(() => {});
    clearTimeout(force);
    // What it has started may hold the other end.
    child.stdout.destroy();
  }
}

const answer = z.object({
  id: z.number().optional(),
  result: z.unknown().optional(),
  error: z.object({ message: z.string() }).optional(),
});

/** Reads a line of the app server; of one that is no answer nothing. */
function answerIn(line: string): z.output<typeof answer> {
  try {
    return answer.parse(JSON.parse(line));
  } catch {
    return {};
  }
}

const maxAnswerMs = 30_000;
const maxEndMs = 5_000;
