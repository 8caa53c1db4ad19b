import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
  type Request,
} from "playwright-core";
import { afterAll, beforeAll, expect, onTestFinished } from "vitest";
import { farewellMs } from "../../src/view/asks.ts";
import type { Principal, Service } from "../e2e/service.ts";

/** Opens consoles in real Chromium. */
export interface Browsers {
  /** Signs in with the link, in a new browser or in a new tab of `browser`. */
  open(service: Pick<Service, "url">, who: Principal, options?: OpenOptions): Promise<Page>;
  /** Opens a new browser; its tabs share locks, storage and channels. */
  browser(options?: BrowserContextOptions): Promise<BrowserContext>;
}

interface OpenOptions extends BrowserContextOptions {
  browser?: BrowserContext;
  /** The path to open after signing in, such as `/sessions`. */
  path?: string;
}

/** The Chromium of this worker; the next file with browser tests uses it again. */
let chrome: Promise<Browser> | undefined;
let closing: NodeJS.Timeout | undefined;
const idleMs = 2_000;

/** Only what hangs takes so long. */
const maxWaitMs = 60_000;

/** Opens browsers for the tests of a file. An error that a page reports fails the test that opened the page. */
export function useBrowsers(): Browsers {
  beforeAll(async () => {
    clearTimeout(closing);
    chrome ??= chromium.launch({
      executablePath: "/usr/bin/chromium-headless-shell",
      args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
    });
    await chrome;
  });
  afterAll(() => {
    closing = setTimeout(() => {
      void chrome?.then((browser) => browser.close());
      chrome = undefined;
    }, idleMs);
  });

  async function browser(options: BrowserContextOptions = {}): Promise<BrowserContext> {
    if (chrome === undefined) throw new Error("Chromium was not started");
    const made = await (await chrome).newContext({ viewport: { width: 1280, height: 800 }, ...options });
    made.setDefaultTimeout(maxWaitMs);
    await made.addInitScript(keepTimers);
    const wrong: string[] = [];
    made.on("weberror", (error) => wrong.push(String(error.error())));
    made.on("console", (message) => {
      // The browser also reports a service that is away.
      if (message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text()))
        wrong.push(message.text());
    });
    onTestFinished(async () => {
      await made.close();
      expect(wrong).toEqual([]);
    });
    return made;
  }

  return {
    browser,
    async open({ url }, who, { browser: given, path = "/inbox", ...options } = {}) {
      const context = given ?? (await browser(options));
      const page = await context.newPage();
      await page.goto(`${url}/#token=${who}-token-for-tests`);
      await page.getByRole("navigation").waitFor();
      await page.goto(`${url}/#${path}`);
      return page;
    },
  };
}

/** Counts the open streams of a browser. */
export function streamsOf(browser: BrowserContext): { readonly open: number } {
  const streams = new Set<Request>();
  browser.on("request", (request) => {
    if (/\/(Watch\w+|ExecuteTool)$/.test(request.url())) streams.add(request);
  });
  browser.on("requestfinished", (request) => streams.delete(request));
  browser.on("requestfailed", (request) => streams.delete(request));
  return {
    get open() {
      // The browser reports no end of a closed tab's requests.
      return [...streams].filter((request) => !request.frame().page().isClosed()).length;
    },
  };
}

/** Collects the answers to requests that a page sends. */
export function answersOf(page: Page): string[] {
  const answers: string[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/RespondToPermission")) answers.push(request.url());
  });
  return answers;
}

/** Waits until the page says that it is live. */
export async function untilLive(page: Page): Promise<void> {
  await page.locator('.live[data-liveness="live"]').waitFor({ state: "attached" });
}

/** Waits until the card takes an answer, which it does after its end was on the screen. */
export async function untilArmed(page: Page): Promise<void> {
  // The page grows while texts are loaded and drawn; a card with a form has no end.
  await expect
    .poll(
      async () => {
        await page.evaluate(`document.querySelector(".ask-end")?.scrollIntoView({ block: "center" })`);
        return await page.locator('.answer-bar .primary[aria-disabled="false"]').filter({ visible: true }).count();
      },
      { timeout: 20_000 },
    )
    .toBe(1);
}

/** Waits until the card takes a rejection, which needs no look at the whole request. */
export async function untilRejectable(page: Page): Promise<void> {
  await page
    .locator('.answer-bar .danger[aria-disabled="false"]')
    .first()
    .waitFor()
    .catch(async (error: Error) => {
      throw new Error(`${error.message}\nThe page shows:\n${await page.locator("main").innerText()}`);
    });
}

/** Waits until the inbox is empty; settled asks leave it at once instead of after their four seconds. */
export async function untilQuiet(page: Page): Promise<void> {
  await expect
    .poll(async () => {
      await passTime(page, farewellMs);
      return await page.getByText("All quiet").count();
    })
    .toBe(1);
}

/** Runs the timers of a page that were set to this delay, as if it had passed. */
export async function passTime(page: Page, delayMs: number): Promise<void> {
  await page.evaluate(`passTime(${delayMs})`);
}

/** Lets a test run timers of a page before they are due. */
const keepTimers = `{
  const [start, stop, due] = [setTimeout, clearTimeout, new Map()];
  window.setTimeout = (run, ms, ...rest) => {
    const id = start(() => {
      due.delete(id);
      run(...rest);
    }, ms);
    if (ms >= 1_000) due.set(id, { run, ms });
    return id;
  };
  window.clearTimeout = (id) => {
    due.delete(id);
    stop(id);
  };
  window.passTime = (passed) => {
    for (const [id, { run, ms }] of [...due]) {
      if (ms !== passed) continue;
      clearTimeout(id);
      run();
    }
  };
}`;

/** Presses an answer button once it is no longer inert. */
export async function answer(page: Page, name: string | RegExp): Promise<void> {
  await untilArmed(page);
  await page.getByRole("button", { name }).click();
}

/** Resolves when a settled request says this. Call it before the answer: the words stay only for some seconds. */
export async function farewellOf(page: Page, words: string): Promise<void> {
  await page.getByText(words).first().waitFor();
}
