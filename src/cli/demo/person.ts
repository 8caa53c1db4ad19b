import { spawn } from "node:child_process";
import { once } from "node:events";
import { platform } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import type { Screen } from "../terminal/screen.ts";
import { durationOf } from "../view/words.ts";
import type { DemoAnswers } from "./answers.ts";

const patienceMs = 60_000;

/** Leaves a request to a person in the browser; answers automatically after Enter, or after a minute without an answer. */
export function createPersonAnswers({
  automatic,
  screen,
  link,
}: {
  automatic: DemoAnswers;
  screen: Screen;
  link: string;
}): DemoAnswers {
  return async (ask, answer, settled) => {
    const { err } = screen.paint;
    screen.alert(err("yellow", `   It is your turn: approve or reject the call in the console${opened(link, screen)}`));
    screen.alert(`   ${err("bold", link)}`);
    const endsAt = Date.now() + patienceMs;
    screen.status(
      () => `   waiting for you, ${durationOf(endsAt - Date.now())} left: press Enter to let it answer itself`,
    );
    await enterOrTimeout(screen, settled);
    screen.status(undefined);
    if (!settled.aborted) await automatic(ask, answer, settled);
  };
}

/** Resolves when the person presses Enter, when the time is over, or when the signal aborts. */
async function enterOrTimeout({ io: { stdin } }: Screen, signal: AbortSignal): Promise<void> {
  const done = new AbortController();
  const either = AbortSignal.any([signal, done.signal]);
  try {
    await Promise.race([once(stdin, "data", { signal: either }), sleep(patienceMs, undefined, { signal: either })]);
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    done.abort();
    stdin.pause();
  }
}

/** Opens the link in a browser where there seems to be one, and says so. */
function opened(link: string, { io: { env } }: Screen): string {
  const isMac = platform() === "darwin" && !env.SSH_CONNECTION;
  const isDesktop = Boolean(env.DISPLAY || env.WAYLAND_DISPLAY);
  if (!isMac && !isDesktop) return ":";
  const browser = spawn(isMac ? "open" : "xdg-open", [link], { stdio: "ignore", detached: true });
  browser.on("error", () => {}).unref();
  return " (it opens in your browser):";
}
