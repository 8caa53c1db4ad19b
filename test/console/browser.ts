import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
  type Request,
} from "playwright-core";
import { afterAll, beforeAll, expect, onTestFinished } from "vitest";
import type { Principal, Service } from "../e2e/service.ts";

/** Opens consoles in real Chromium. */
export interface Browsers {
  /** Signs in by the link, in a browser of its own, or in a new tab of `browser`. */
  open(service: Pick<Service, "url">, who: Principal, options?: OpenOptions): Promise<Page>;
  /** A browser of its own: tabs in it share what tabs of a browser share. */
  browser(options?: BrowserContextOptions): Promise<BrowserContext>;
}

interface OpenOptions extends BrowserContextOptions {
  browser?: BrowserContext;
  /** Where to go after signing in, such as `/sessions`. */
  path?: string;
}

/** One Chromium for all tests of a file. What a page says is wrong (errors, refused by its policy) fails the test that opened it. */
export function useBrowsers(): Browsers {
  let chrome: Browser | undefined;
  beforeAll(async () => {
    chrome = await chromium.launch({
      executablePath: "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
    });
  });
  afterAll(async () => {
    await chrome?.close();
  });

  async function browser(options: BrowserContextOptions = {}): Promise<BrowserContext> {
    if (chrome === undefined) throw new Error("Chromium was not started");
    const made = await chrome.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    made.setDefaultTimeout(15_000);
    const wrong: string[] = [];
    made.on("weberror", (error) => wrong.push(String(error.error())));
    made.on("console", (message) => {
      // A service that is away is told of by the browser, too.
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
      await page.goto(`${url}/#token=${who}-token`);
      await page.getByRole("navigation").waitFor();
      await page.goto(`${url}/#${path}`);
      return page;
    },
  };
}

/** Counts the streams that a browser has open, of whatever rpc. */
export function streamsOf(browser: BrowserContext): { readonly open: number } {
  const streams = new Set<Request>();
  browser.on("request", (request) => {
    if (/\/(Watch\w+|ExecuteTool)$/.test(request.url())) streams.add(request);
  });
  browser.on("requestfinished", (request) => streams.delete(request));
  browser.on("requestfailed", (request) => streams.delete(request));
  return {
    get open() {
      // Nothing is told of the requests of a tab that was closed.
      return [...streams].filter((request) => !request.frame().page().isClosed()).length;
    },
  };
}

/** Waits until the page says that it is live. */
export async function untilLive(page: Page): Promise<void> {
  await page.locator('.live[data-liveness="live"]').waitFor({ state: "attached" });
}

/** Waits until the card takes an answer. */
export async function untilArmed(page: Page): Promise<void> {
  await page.locator('.answer-bar button[aria-disabled="false"]').first().waitFor();
}

/** The buttons of an answer take nothing in the first half second; this waits until they do, then presses. */
export async function answer(page: Page, name: string | RegExp): Promise<void> {
  await untilArmed(page);
  await page.getByRole("button", { name }).click();
}
