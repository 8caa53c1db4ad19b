import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fromBinary } from "@bufbuild/protobuf";
import type { Page, Request } from "playwright-core";
import { describe, expect, test } from "vitest";
import { WatchManyRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { connect } from "../e2e/clients.ts";
import { ask } from "./ask.ts";
import { answer, passTime, streamsOf, untilLive, useBrowsers } from "./browser.ts";
import { useServiceOn } from "./stores.ts";

const browsers = useBrowsers();

describe("visible windows of one browser", () => {
  const service = useServiceOn("SQLite");
  const numbers = [1, 2, 3, 4];

  /** A running call without output until the test lets it continue. */
  async function silentCall() {
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession();
    const command = `until [ -e ${sessionId} ]; do sleep 0.05; done; echo said by ${sessionId}`;
    await agent.tools.callTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input: { command }, waitMs: 0 });
    return { sessionId, goOn: () => writeFile(join(service().workspace, sessionId), "") };
  }

  test("four that show running calls share one stream, are live, and approve", async () => {
    const browser = await browsers.browser();
    const streams = streamsOf(browser);
    const windows = [];
    for (const _ of numbers) {
      const call = await silentCall();
      const page = await browsers.open(service(), "approver", { browser, path: `/sessions/${call.sessionId}/c1` });
      await page.getByText("No output yet.").waitFor();
      windows.push({ ...call, page });
    }
    for (const { page } of windows) expect(await page.evaluate("document.visibilityState")).toBe("visible");
    await expect.poll(() => streams.open).toBe(1);
    for (const { sessionId, goOn, page } of windows) {
      await goOn();
      await page.locator(".output-line").getByText(`said by ${sessionId}`).waitFor();
      await page.getByText("completed").first().waitFor();
    }
    for (const { page, sessionId } of windows) {
      const { end } = await ask(service(), { command: `echo approved after ${sessionId}` });
      await page.bringToFront();
      await page.getByRole("link", { name: "Inbox" }).click();
      await page.getByRole("link", { name: `echo approved after ${sessionId}` }).click();
      await answer(page, /Approve once/);
      expect((await end()).part?.state.case).toBe("completed");
    }
    await expect.poll(() => streams.open).toBe(1);
  });

  test("when the leader is closed, the others receive every event exactly once", async () => {
    const browser = await browsers.browser();
    const streams = streamsOf(browser);
    await browser.addInitScript(keepNumbers);
    const agent = connect(service(), "caller");
    const [first, ...others] = await Promise.all(numbers.map(() => agent.newSession()));
    const listening = await browsers.open(service(), "approver", { browser, path: `/sessions/${first}` });
    await untilLive(listening);
    const pages: Page[] = [];
    for (const sessionId of others) {
      const page = await browsers.open(service(), "approver", { browser, path: `/sessions/${sessionId}` });
      await page.getByText("0 calls").waitFor();
      await page.locator(".not-live").waitFor({ state: "detached" });
      pages.push(page);
    }
    const calls = 40;
    const make = (from: number, to: number) =>
      Promise.all(
        others.map(async (sessionId) => {
          for (let i = from; i < to; i += 1)
            await agent.tools.callTool({ sessionId, callId: `c${i}`, tool: "echo", input: { text: `${i}` } });
        }),
      );
    await make(0, 10);
    await Promise.all([listening.close(), make(10, calls)]);
    for (const page of pages) {
      await page.getByText(`${calls} calls`).waitFor();
      await page.locator(".call-row").last().locator('[data-state="completed"]').first().waitFor();
    }
    await expect.poll(() => streams.open).toBe(1);
    // The first remaining tab leads now; the last one received every event from one leader and then from the other.
    const seen = () => pages[2]?.evaluate(`numbers["${others[2]}"]`);
    await expect.poll(seen).toEqual(Array.from({ length: 3 * calls }, (_, i) => i + 1));
  });

  test("when the leader is frozen, another visible window takes over; awake again, it follows", async () => {
    const browser = await browsers.browser();
    const streams = streamsOf(browser);
    const listening = await browsers.open(service(), "approver", { browser });
    await untilLive(listening);
    const { sessionId, goOn } = await silentCall();
    const page = await browsers.open(service(), "approver", { browser, path: `/sessions/${sessionId}/c1` });
    await page.getByText("No output yet.").waitFor();
    const wake = await freeze(listening);
    const another = page.waitForRequest(/WatchMany$/);
    await passTime(page, 10_000);
    await another;
    await goOn();
    await page.locator(".output-line").getByText(`said by ${sessionId}`).waitFor();
    const { end } = await ask(service(), { command: "echo meanwhile" });
    await page.getByRole("link", { name: "Inbox" }).click();
    await answer(page, /Approve once/);
    expect((await end()).part?.state.case).toBe("completed");
    await wake();
    await listening.bringToFront();
    await expect.poll(() => streams.open).toBe(1);
    await ask(service(), { command: "echo awake" });
    await listening.getByRole("article").getByText("echo awake").first().waitFor();
    await untilLive(listening);
  });

  test("a tab in the background gets only asks; visible again, its session continues after the last sequence number", async () => {
    const browser = await browsers.browser();
    const wants: string[][] = [];
    browser.on("request", (request) => {
      if (request.url().endsWith("/WatchMany")) wants.push(wantsOf(request));
    });
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession();
    const call = { sessionId, tool: "echo", input: { text: "x" } };
    await agent.tools.callTool({ ...call, callId: "c1" });
    const page = await browsers.open(service(), "approver", { browser, path: `/sessions/${sessionId}` });
    await page.getByText(/^1 call /).waitFor();
    await expect.poll(() => wants.at(-1)).toEqual(["asks", "session with snapshot"]);
    await page.locator(".not-live").waitFor({ state: "detached" });
    await page.evaluate(look(false));
    await expect.poll(() => wants.at(-1)).toEqual(["asks"]);
    await agent.tools.callTool({ ...call, callId: "c2" });
    await page.evaluate(look(true));
    await page.getByText("2 calls").waitFor();
    await expect.poll(() => wants.at(-1)).toEqual(["asks", "session after 3"]);
  });

  test("a new ask raises one notification and marks every tab; a click on it opens the ask", async () => {
    const browser = await browsers.browser();
    await browser.addInitScript(keepNotices);
    const asked = [await ask(service(), { command: "echo before" })];
    const pages: Page[] = [];
    for (const _ of numbers.slice(2))
      pages.push(await browsers.open(service(), "approver", { browser, path: "/policy" }));
    for (const page of pages) {
      await expect.poll(() => page.title()).toBe("(1) Policy · Toolgate");
      await page.evaluate(look(false));
    }
    asked.push(await ask(service(), { command: "echo look here" }));
    for (const page of pages) {
      await expect.poll(() => page.title()).toBe("(2) Policy · Toolgate");
      await expect.poll(() => page.locator("link[rel=icon]").getAttribute("href")).toContain("icon-waiting");
    }
    const shown = async () =>
      await Promise.all(pages.map((page) => page.evaluate("notices.map(({ words }) => words)")));
    await expect.poll(shown).toEqual([[{ title: "build asks: bash", body: "echo look here" }], []]);
    await pages[0]?.evaluate("notices[0].onclick()");
    await pages[0]?.getByRole("article").locator(".command-line").getByText("echo look here").waitFor();
    for (const { call } of asked) await connect(service(), "caller").tools.cancelTool(call);
    for (const page of pages) await expect.poll(() => page.title()).toMatch(/^(Inbox|Policy) · Toolgate$/);
  });

  test("on a phone without a channel for pushes, Notify me asks the browser; then a new ask raises a notification", async () => {
    const browser = await browsers.browser({ viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
    await browser.addInitScript(keepNotices);
    await browser.addInitScript(notAskedYet);
    const page = await browsers.open(service(), "approver", { browser });
    await untilLive(page);
    const button = page.getByRole("button", { name: "Notify me", exact: true });
    expect(await button.isVisible()).toBe(false);
    await page.getByRole("button", { name: "You" }).tap();
    expect((await button.boundingBox())?.height).toBeGreaterThanOrEqual(24);
    await button.tap();
    const sheet = page.getByRole("dialog", { name: "Notify this device" });
    await sheet.getByText("The service sends no pushes yet").waitFor();
    await sheet.getByRole("button", { name: "Notify me while this page is open" }).tap();
    await sheet.getByText("This page notifies you while it is open").waitFor();
    await sheet.getByRole("button", { name: "Close" }).tap();
    await page.evaluate(look(false));
    await ask(service(), { command: "echo to the phone" });
    const words = () => page.evaluate("notices.map(({ words }) => words)");
    await expect.poll(words).toEqual([{ title: "build asks: bash", body: "echo to the phone" }]);
  });
});

/** The subscriptions of a stream. */
function wantsOf(request: Request): string[] {
  // Five bytes precede the message: flags and length.
  const { watches } = fromBinary(WatchManyRequestSchema, request.postDataBuffer()?.subarray(5) ?? new Uint8Array());
  return watches.map(({ watch }) => {
    if (watch.case !== "session") return "asks";
    return watch.value.snapshot ? "session with snapshot" : `session after ${watch.value.afterSeq}`;
  });
}

/** Shows or hides a page; headless Chromium treats every page as visible. */
const look = (inSight: boolean) => `
  Object.defineProperty(document, "hidden", { configurable: true, get: () => ${!inSight} });
  document.dispatchEvent(new Event("visibilitychange"));`;

/** Freezes a page as a browser does: nothing in it runs, and messages to it wait. Returns the function that wakes it. */
async function freeze(page: Page): Promise<() => Promise<void>> {
  const devtools = await page.context().newCDPSession(page);
  const paused = new Promise((resolve) => devtools.once("Debugger.paused", resolve));
  await devtools.send("Debugger.enable");
  await devtools.send("Debugger.pause");
  // The page stops at the next statement.
  page.evaluate("0").catch(() => undefined);
  await paused;
  return async () => {
    await devtools.send("Debugger.resume");
    await devtools.send("Debugger.disable");
  };
}

/** Records the sequence numbers of events that other tabs passed on, by session. */
const keepNumbers = `
  window.numbers = {};
  window.BroadcastChannel = class extends BroadcastChannel {
    constructor(name) {
      super(name);
      this.addEventListener("message", ({ data }) => {
        const event = data.frame?.value?.event;
        if (event && data.key !== "asks") (numbers[event.sessionId] ??= []).push(Number(event.seq));
      });
    }
  };`;

/** Records the notifications of a page. Headless Chromium shows none, and refuses the permission for them. */
const keepNotices = `
  window.notices = [];
  window.Notification = class extends Notification {
    static permission = "granted";
    constructor(title, options) {
      super(title, options);
      this.words = { title, body: options.body };
      notices.push(this);
    }
  };`;

/** Lets the page ask for the permission, which is then granted. */
const notAskedYet = `
  Notification.permission = "default";
  Notification.requestPermission = async () => (Notification.permission = "granted");`;
