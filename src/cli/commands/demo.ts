import { ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import { withScreen } from "../command.ts";
import type { CliContext } from "../context.ts";
import { findRedis, onStage } from "../demo/stage.ts";
import { playStory } from "../demo/story.ts";
import { exitCodes } from "../exit-codes.ts";
import { CommandError } from "../failure/command-error.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";

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
