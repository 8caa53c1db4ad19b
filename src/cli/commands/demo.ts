import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { platform } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { equals } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome, type PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type ToolPart,
  ToolPartSchema,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { failedCommandWords } from "../../view/outcomes.ts";
import { countOf } from "../../view/quantities.ts";
import { withScreen } from "../command.ts";
import { connectServer, type ServerConnection } from "../connection/connection.ts";
import { isSettledElsewhere, sendReply } from "../connection/send-reply.ts";
import type { CliContext } from "../context.ts";
import { findRedis, onStage, type Stage, type StageReplica } from "../demo/stage.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { errorInfoOf } from "../failure/failure.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { settledWords } from "../view/settled.ts";
import { durationOf, signInLink } from "../view/words.ts";

/** Defines `toolgate demo`. */
export function defineDemo(command: Command, context: CliContext): void {
  command
    .description(
      "Show one call of an agent that is forged, changed, cut by a crash, approved at another replica and retried, and that runs once. Starts two replicas on a Redis, or one service on SQLite where redis-server is not installed, and removes them. At a terminal you approve the call in the browser; after Enter, or a minute, the demo approves it",
    )
    .option("--auto", "let the demo approve it at once")
    .action(({ auto = false }: { auto?: boolean }) =>
      withScreen(context, command, (screen) => demo(context, screen, auto)),
    );
}

async function demo({ program }: CliContext, screen: Screen, auto: boolean): Promise<number> {
  const { stdin, stdout, env } = screen.io;
  const isPersonThere = !auto && !screen.json && stdin.isTTY === true && stdout.isTTY === true;
  const leave = new AbortController();
  const onSignal = () => leave.abort();
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const name of signals) process.on(name, onSignal);
  const { signal } = leave;
  const say = (text: string) => {
    if (!screen.json) screen.write(`${text}\n`);
  };
  try {
    say(findRedis(env) === undefined ? onSqlite : onRedis);
    say("An agent asks over gRPC to run deploy.sh, which adds a line to ledger.txt.\n");
    await onStage({ program, env, signal }, (stage) => playStory({ stage, screen, signal, isPersonThere }));
    say("\nThe demo has removed all that it made. Next: npx toolgate serve");
    return exitCodes.ok;
  } catch (error) {
    if (signal.aborted) return exitCodes.cancelled;
    if (!(error instanceof ConnectError)) throw error;
    const problem = `a service of the demo failed: ${terminalSafe(error.rawMessage)}`;
    throw new CommandError(problem, "run the demo again; if it fails again, report it", exitCodes.failed);
  } finally {
    for (const name of signals) process.off(name, onSignal);
  }
}

const onRedis = "Two replicas of Toolgate share one Redis.";
const onSqlite =
  "One Toolgate on SQLite, started again after its crash: with redis-server installed there are two replicas.";

/** The demo in progress. */
interface Demo {
  stage: Stage;
  screen: Screen;
  /** Ends the demo early. */
  signal: AbortSignal;
  /** Leaves the last answer to the person at this terminal, for a minute. */
  isPersonThere: boolean;
}

const call = {
  sessionId: "ses_demo",
  callId: "call_deploy",
  tool: "bash",
  input: { command: "sh deploy.sh", description: "Deploy the project" },
};
const approval = { reply: PermissionReply.ONCE };

/** Plays one call of an agent through everything that could go wrong with it. Prints a line for each promise that was kept. */
async function playStory(demo: Demo): Promise<void> {
  const { stage, screen, signal } = demo;
  const { first } = stage;
  using connections = new DisposableStack();
  const connect = (who: keyof Stage["tokens"], { url }: StageReplica) => {
    const token = { value: stage.tokens[who], source: `the token of the ${who} was sent` };
    return connections.adopt(connectServer(url, token), (server) => server.close());
  };

  await writeScript(stage, 1);
  const agent = connect("agent", first);
  await agent.sessions.createSession({ sessionId: call.sessionId, title: "Deploy the project" }, { signal });
  const events = follow(agent, 0n, signal);
  const { ask } = await nextAsk(events);

  const refusal = await sendReply(agent.permissions, ask, approval).then(() => undefined, errorInfoOf);
  check(refusal?.reason === "OWN_CALL", "the agent approved its own call");
  show(screen, "No agent approves its own call", "it tried, as an approver too: refused (OWN_CALL)");

  await writeScript(stage, 2);
  await sendReply(connect("person", first).permissions, ask, approval);
  const again = await nextAsk(events);
  check(again.ask.digest !== ask.digest, "the changed script was asked for under the digest of the approved one");
  check(again.ask.changed.includes("deploy.sh"), "the new request does not name the file that has changed");
  check((await ledgerLines(stage)).length === 0, "the changed script ran");
  show(screen, "What was approved is what runs", "deploy.sh changed after the ask: approval void, asked again");

  const next = await stage.crash();
  const person = connect("person", next);
  const { permissions: open } = await person.permissions.listPermissions({}, { signal });
  check(
    open.some(({ id }) => id === again.ask.id),
    `the request is not open at ${next.name}`,
  );
  show(screen, "A waiting call survives a crash", `kill -9 of ${first.name}: the request is open at ${next.name}`);

  const caller = connect("agent", next);
  const { part, settled } = await decide(demo, { caller, person, next, ...again });
  show(screen, "A person decides, anywhere", `${settledWords(settled)}, at ${next.name}`);

  const isApproved = settled.outcome === PermissionOutcome.ONCE || settled.outcome === PermissionOutcome.ALWAYS;
  if (isApproved) checkRan(part);
  const lines = await ledgerLines(stage);
  check(lines.length === 1 || (lines.length === 0 && !isApproved), `ledger.txt has ${countOf(lines.length, "line")}`);
  const found = [`ledger.txt has ${countOf(lines.length, "line")}`, ...lines].join(": ");
  show(screen, isApproved ? "It runs once" : "What was not approved does not run", found);

  const retried = await caller.tools.callTool({ ...call, waitMs: 30_000 }, { signal, timeoutMs: 0 });
  check(retried.part !== undefined && equals(ToolPartSchema, retried.part, part), "the retry had another result");
  check((await ledgerLines(stage)).length === lines.length, "the retry ran the script");
  show(screen, "A retry runs nothing", `the same ids again: the same result, still ${countOf(lines.length, "line")}`);

  show(screen, "A changed record is found", await forgeRecord(stage, next));
}

/** Prints a promise and what showed it: on one line, or on two where the terminal is narrow. */
function show({ json, paint, write, io }: Screen, promise: string, shown: string): void {
  const isWide = (io.stdout.columns ?? minWideColumns) >= minWideColumns;
  const head = `${paint.out("green", "✓")} ${paint.out("bold", isWide ? promise.padEnd(31) : promise)}`;
  write(json ? `${JSON.stringify({ promise, shown })}\n` : `${head}${isWide ? "  " : "\n    "}${shown}\n`);
}

const minWideColumns = 100;

function check(isKept: boolean, problem: string): void {
  if (isKept) return;
  throw new CommandError(`a promise was broken: ${problem}`, "this must not happen: report it", exitCodes.failed);
}

/** Throws if this machine kept the approved command from running, which is no broken promise. */
function checkRan(part: ToolPart): void {
  const { state } = part;
  const problem = state.case === "error" ? state.value.error : failedCommandWords(part);
  if (problem === "") return;
  const message = `the command was approved and failed: ${terminalLine(problem)}`;
  throw new CommandError(message, "correct that, and run the demo again", exitCodes.commandFailed);
}

/** Makes the call, or attaches to it, and yields its events after a sequence number. */
async function* follow(
  { tools }: ServerConnection,
  afterSeq: bigint,
  signal: AbortSignal,
): AsyncGenerator<SessionEvent, undefined> {
  for await (const { event } of tools.executeTool({ ...call, afterSeq }, { signal, timeoutMs: 0 }))
    if (event) yield event;
}

/** A permission request, and its sequence number. */
interface Asked {
  ask: PermissionRequest;
  seq: bigint;
}

async function nextAsk(events: AsyncGenerator<SessionEvent, undefined>): Promise<Asked> {
  for (;;) {
    const { value } = await events.next();
    check(value !== undefined, "the call ended without a request");
    if (value?.event.case === "permissionAsked") return { ask: value.event.value, seq: value.seq };
  }
}

/** The connections with which the last request is answered, and where. */
interface Answering extends Asked {
  caller: ServerConnection;
  person: ServerConnection;
  next: StageReplica;
}

/** Has the request answered, and others that an edit of the call opens; returns the end of the call, and the last settlement. */
async function decide(demo: Demo, answering: Answering): Promise<{ part: ToolPart; settled: PermissionSettled }> {
  await answer(demo, answering);
  let settled: PermissionSettled | undefined;
  for await (const { event, seq } of follow(answering.caller, answering.seq, demo.signal)) {
    if (event.case === "permissionAsked") await answer(demo, { ...answering, ask: event.value, seq });
    if (event.case === "permissionSettled") settled = event.value;
    if (event.case !== "part" || settled === undefined) continue;
    const { state } = event.value;
    if (state.case === "completed" || state.case === "error") return { part: event.value, settled };
  }
  throw new CommandError("the call ended without a result", "this must not happen: report it", exitCodes.failed);
}

/** Leaves a request to the person where one is there; approves it once if it is still open after that. */
async function answer(demo: Demo, answering: Answering): Promise<void> {
  if (demo.isPersonThere) await waitForPerson(demo, answering);
  await sendReply(answering.person.permissions, answering.ask, approval).catch((error: unknown) => {
    if (!isSettledElsewhere(error)) throw error;
  });
}

/** Shows the person a link to the request; returns once it is settled, after Enter, or after a minute. */
async function waitForPerson({ screen, signal }: Demo, { caller, next, ask, seq }: Answering): Promise<void> {
  const { stdin, env } = screen.io;
  const { err } = screen.paint;
  const link = signInLink(next.url, next.signInCode);
  screen.alert(
    `\n  ${err("yellow", "It is your turn:")} approve \`${call.input.command}\` in the console of ${next.name}`,
  );
  screen.alert(`  ${err("bold", link)}${openBrowser(link, env) ? "  (it opens in your browser)" : ""}\n`);
  const endsAt = Date.now() + patienceMs;
  screen.status(() => `  waiting for you, ${durationOf(endsAt - Date.now())}: Enter lets the demo approve it itself`);
  const over = new AbortController();
  const either = AbortSignal.any([over.signal, signal]);
  const untilSettled = async () => {
    for await (const { event } of follow(caller, seq, either))
      if (event.case === "permissionSettled" && event.value.permissionId === ask.id) return;
  };
  try {
    const options = { signal: either };
    await Promise.race([untilSettled(), once(stdin, "data", options), sleep(patienceMs, undefined, options)]);
  } finally {
    over.abort();
    stdin.pause();
    screen.status(undefined);
  }
}

const patienceMs = 60_000;

/** Opens a link in a browser where there seems to be one. */
function openBrowser(link: string, env: NodeJS.ProcessEnv): boolean {
  const isMac = platform() === "darwin" && !env.SSH_CONNECTION;
  if (!isMac && !env.DISPLAY && !env.WAYLAND_DISPLAY) return false;
  const browser = spawn(isMac ? "open" : "xdg-open", [link], { stdio: "ignore", detached: true });
  browser.on("error", () => {}).unref();
  return true;
}

/** Has the record verified, and then a copy of it in which one byte is another one. */
async function forgeRecord({ run, directory }: Stage, at: StageReplica): Promise<string> {
  const [verified, exported] = await Promise.all([run(at, "audit", "verify"), run(at, "audit", "export")]);
  const [count] = /\d+ records/.exec(verified.stderr) ?? [];
  check(verified.code === 0 && count !== undefined, `the record does not verify: ${verified.stderr}`);
  const bytes = Buffer.from(exported.stdout);
  const place = bytes.indexOf('"content":"', bytes.length / 2) + '"content":"'.length + 8;
  bytes[place] = bytes[place] === 0x41 ? 0x42 : 0x41;
  const copy = join(directory, "copy.jsonl");
  await writeFile(copy, bytes);
  const forged = await run(at, "audit", "verify", copy);
  const [found] = /record \d+/.exec(forged.stderr) ?? [];
  check(forged.code !== 0 && found !== undefined, "the changed byte was not found");
  return `${count} verify; one byte changed in a copy: ${found} is broken`;
}

async function writeScript({ workspace }: Stage, version: number): Promise<void> {
  await writeFile(join(workspace, "deploy.sh"), `echo "deployed version ${version}" >> ledger.txt\n`);
}

async function ledgerLines({ workspace }: Stage): Promise<string[]> {
  const text = await readFile(join(workspace, "ledger.txt"), "utf8").catch(() => "");
  return text.split("\n").slice(0, -1);
}
