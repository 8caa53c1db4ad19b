import type { Locator, Page } from "playwright-core";
import { beforeAll, describe, expect, test } from "vitest";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { ask } from "./ask.ts";
import { untilArmed, useBrowsers } from "./browser.ts";
import { findings } from "./findings.ts";

const service = useService();
const browsers = useBrowsers();
let sessionId = "";

beforeAll(async () => {
  const agent = connect(service, "caller");
  sessionId = await agent.newSession({ title: "A session with calls" });
  const call = { sessionId, agent: "free", tool: "bash" };
  await agent.tools.callTool({ ...call, callId: "c1", input: { command: colours } });
  await agent.tools.callTool({ ...call, callId: "c2", tool: "read", input: { filePath: "missing" } });
});

/** A line in each terminal colour, including bright colours and backgrounds. */
const colours = [30, 40, 90, 100]
  .flatMap((base) => Array.from({ length: 8 }, (_, i) => `printf '\\033[${base + i}mcolour\\033[0m\\n'`))
  .join("; ");

const places = ["/inbox", "/sessions", "/session", "/call", "/policy", "/tools"] as const;

/** Waits until a page shows its content. */
async function untilShown(page: Page, place: string): Promise<void> {
  const content: Readonly<Record<string, Locator>> = {
    "/inbox": page.locator(".ask-row").first(),
    "/sessions": page.getByRole("link", { name: /^A session/ }).first(),
    "/session": page.locator(".call-row").nth(1),
    "/call": page.locator(".output-line").first(),
    "/policy": page.getByRole("table").first(),
    "/tools": page.getByRole("link", { name: /^bash / }),
  };
  await content[place]?.waitFor();
}

describe.each(["light", "dark"] as const)("in %s", (colorScheme) => {
  test.each(places)("axe finds nothing serious at %s", async (place) => {
    await ask(service, { command: "echo checked && rm -rf x" });
    const path = { "/session": `/sessions/${sessionId}`, "/call": `/sessions/${sessionId}/c1` }[String(place)] ?? place;
    const page = await browsers.open(service, "approver", { path, colorScheme, reducedMotion: "reduce" });
    await untilShown(page, place);
    if (place === "/inbox") {
      await untilArmed(page);
      await page.keyboard.press("a");
      await page.getByText("From now on, allow").waitFor();
    }
    expect(await findings(page)).toEqual([]);
  });

  test("axe finds nothing serious on the sign-in page", async () => {
    const browser = await browsers.browser({ colorScheme });
    const page = await browser.newPage();
    await page.goto(service.url);
    await page.getByLabel("Code or token").waitFor();
    expect(await findings(page)).toEqual([]);
  });
});

test("axe reports a button without a name, so its silence means something", async () => {
  const page = await browsers.open(service, "approver");
  await page.evaluate("document.querySelector('main').append(document.createElement('button'))");
  expect(await findings(page)).toEqual(["button-name: #main > button"]);
});

describe("on a phone", () => {
  const phone = { viewport: { width: 375, height: 667 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 };

  test.each(["/inbox", "/sessions", "/policy", "/tools"])("nothing at %s is wider than the screen", async (path) => {
    await ask(service, { command: `echo ${"long".repeat(100)}` });
    const page = await browsers.open(service, "approver", { path, ...phone });
    await untilShown(page, path);
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(375);
  });

  test("an ask can be selected, read and approved by touch", async () => {
    const call = await ask(service, { command: "echo from the train" });
    const page = await browsers.open(service, "approver", phone);
    await page.getByRole("link", { name: "echo from the train" }).tap();
    await page.getByRole("article").getByText("echo from the train").first().waitFor();
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(375);
    await untilArmed(page);
    const button = page.getByRole("button", { name: "Approve once" });
    const box = await button.boundingBox();
    expect(box?.height).toBeGreaterThanOrEqual(44);
    await button.tap();
    expect((await call.end()).part?.state.case).toBe("completed");
  });
});

test("a screen reader announces the number of waiting calls, and keys alone lead from the list to the answer", async () => {
  const call = await ask(service, { command: "echo by keys" });
  const page = await browsers.open(service, "approver");
  await page.getByRole("status").getByText("1 waiting for an answer").waitFor({ state: "attached" });
  await page.getByRole("list", { name: "Calls waiting for an answer" }).getByRole("link").focus();
  await page.keyboard.press("Enter");
  await untilArmed(page);
  const once = page.getByRole("button", { name: /Approve once/ });
  const tab = async () => {
    await page.keyboard.press("Tab");
    return await once.evaluate((button) => button.matches(":focus"));
  };
  await expect.poll(tab).toBe(true);
  await page.keyboard.press("Enter");
  expect((await call.end()).part?.state.case).toBe("completed");
});
