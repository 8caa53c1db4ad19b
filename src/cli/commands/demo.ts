import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Command } from "commander";
import { withScreen } from "../command.ts";
import { connectServer } from "../connection/connection.ts";
import type { CliContext } from "../context.ts";
import { createAutomaticAnswers } from "../demo/answers.ts";
import { showDemo } from "../demo/demo.ts";
import { createPersonAnswers } from "../demo/person.ts";
import { exitCodes } from "../exit-codes.ts";
import { hasTerminal } from "../terminal/prompt.ts";
import type { Screen } from "../terminal/screen.ts";
import { signInLink } from "../view/sign-in-link.ts";

/** Defines `toolgate demo`. */
export function defineDemo(command: Command, context: CliContext): void {
  command
    .description(
      "Show an agent at work in a temporary workspace: a call that policy allows, one that you approve in the browser, and one that is rejected with advice. Without a terminal, or without an answer for a minute, it answers itself",
    )
    .option("--auto", "let it answer itself")
    .action(({ auto = false }: { auto?: boolean }) =>
      withScreen(context, command, (screen) => demo(context, screen, auto)),
    );
}

async function demo(context: CliContext, screen: Screen, auto: boolean): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-demo-"));
  const workspace = join(folder, "workspace");
  const config = join(folder, "toolgate.toml");
  const leave = new AbortController();
  const onSignal = () => leave.abort();
  process.once("SIGINT", onSignal).once("SIGTERM", onSignal);
  try {
    await mkdir(workspace);
    await writeFile(join(workspace, "notes.txt"), "Buy milk.\n");
    await writeFile(config, '[permission.bash]\n"ls *" = "allow"\n');
    const service = await context.loadService();
    const { url, tokens, createSignInCode, close } = await service.embed({ workspace, config });
    const source = "the token of the demo was sent";
    const agent = connectServer(url, { value: tokens.caller, source });
    const approver = connectServer(url, { value: tokens.approver, source });
    try {
      const automatic = createAutomaticAnswers(approver, screen);
      const waitsForPerson = !auto && !screen.json && hasTerminal(screen.io);
      const person = waitsForPerson
        ? createPersonAnswers({ automatic, screen, link: signInLink(url, createSignInCode()) })
        : automatic;
      await showDemo({ agent, answers: { automatic, person }, screen, workspace, signal: leave.signal });
      return exitCodes.ok;
    } catch (error) {
      if (leave.signal.aborted) return exitCodes.cancelled;
      throw error;
    } finally {
      agent.close();
      approver.close();
      await close();
    }
  } finally {
    process.off("SIGINT", onSignal).off("SIGTERM", onSignal);
    await rm(folder, { recursive: true, force: true });
  }
}
