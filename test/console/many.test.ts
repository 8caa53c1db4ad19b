import type { Page } from "playwright-core";
import { expect, test } from "vitest";
import { farewellMs } from "../../src/view/asks.ts";
import { type Clients, connect } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { answer, passTime, untilRejectable, useBrowsers } from "./browser.ts";

const browsers = useBrowsers();
const settings = `
[limits]
open_asks = 300
running_calls = 300
[agent.cleaner.permission.bash]
"*" = "ask"
`;

/** Makes 200 calls: 150 equal ones, at most two in a session; 49 different ones in ten sessions; and one of another agent. */
async function ask200(agent: Clients): Promise<void> {
  const titles = ["Update", "Fix the login", "Write docs", "Release", "Clean up"];
  const sessions = await Promise.all(
    Array.from({ length: 100 }, (_, i) => agent.newSession({ title: `${titles[i % 5]} ${i}` })),
  );
  const calls = Array.from({ length: 200 }, (_, i) => ({
    ...{ sessionId: sessions[i < 150 ? i % 100 : i % 10] ?? "", callId: `c${i}`, tool: "bash", waitMs: 0 },
    ...(i === 199 && { agent: "cleaner" }),
    input: { command: i < 150 ? "npm test" : i === 199 ? "rm -rf build" : `make part-${i}` },
  }));
  for (let from = 0; from < calls.length; from += 50)
    await Promise.all(calls.slice(from, from + 50).map((call) => agent.tools.callTool(call)));
}

/** Opens an inbox in which 200 calls wait. */
async function inboxOf200(options: Parameters<typeof browsers.open>[2] = {}): Promise<Page> {
  const service = await startService({ settings });
  await ask200(connect(service, "caller"));
  const page = await browsers.open(service, "approver", options);
  await page.getByText("200 waiting for an answer").waitFor({ state: "attached" });
  return page;
}

/**
 * Presses `r`, and returns the field that gets the next key, as it does before the page is drawn again; undefined if the card took no
 * key, since news of its calls came.
 */
const fieldAfterKey = `(async () => {
  dispatchEvent(new KeyboardEvent("keydown", { key: "r" }));
  for (let i = 0; i < 10; i += 1) await undefined;
  const { id } = document.activeElement;
  await new Promise((resolve) => setTimeout(resolve, 100));
  return document.getElementById("advice") ? id : undefined;
})()`;

const waits = (page: Page, words: string) => page.locator(".list-pane .hint").getByText(words).waitFor();

test("of 200 requests equal ones share a row, and words, an agent, a session, a tool or a risk find the others", async () => {
  const page = await inboxOf200();
  const rows = page.locator(".ask-row");
  await rows.first().getByText("×150").waitFor();
  await page.getByRole("article").getByText("149 equal calls will still wait").waitFor();
  const filter = page.getByRole("searchbox", { name: "Filter" });
  await page.keyboard.press("/");
  expect(await filter.evaluate((field) => field.matches(":focus"))).toBe(true);
  for (const [words, found] of [
    ["make part-15", 10],
    ["agent:cleaner", 1],
    ["risk:deletes", 1],
    ['session:"fix the login" npm', 30],
    ["tool:webfetch", 0],
    ["tool:bash part-160", 1],
  ] as const) {
    await filter.fill(words);
    await waits(page, `${found} of 200 waiting`);
  }
  await page.getByRole("article").locator(".command-line").getByText("make part-160").waitFor();
  await page.keyboard.press("Enter");
  await answer(page, /Approve once/);
  await waits(page, "0 of 199 waiting");
  await page.keyboard.press("/");
  await page.keyboard.press("Escape");
  await waits(page, "199 waiting");
  expect(await filter.inputValue()).toBe("");
});

/** Opens the reasons of a rejection by a key, which a card takes that has not just changed. */
async function openReasons(page: Page): Promise<void> {
  let field: unknown;
  for (; field === undefined; field = await page.evaluate(fieldAfterKey)) await untilRejectable(page);
  expect(field).toBe("advice");
}

test("one reason rejects all equal calls by keys, then all that wait in a session", async () => {
  const page = await inboxOf200();
  for (const [reach, left] of [
    ["all 150 equal calls", 50],
    ["all that wait in this session", 45],
  ] as const) {
    await openReasons(page);
    await page.keyboard.type("Not today.");
    await page.getByRole("combobox").selectOption(reach);
    await page.keyboard.press("Control+Enter");
    await page.getByText(`${left} waiting for an answer`).waitFor({ state: "attached" });
    await page.getByText("Sent: rejected all").waitFor();
  }
});

test("of equal calls that cannot all be rejected the page says how many may still wait, until the next answer", async () => {
  const page = await inboxOf200();
  let passed = 0;
  await page.route("**/RespondToPermission", async (route) => {
    passed += 1;
    await (passed > 30 ? route.fulfill({ status: 403, json: { code: "permission_denied" } }) : route.continue());
  });
  await openReasons(page);
  await page.getByRole("combobox").selectOption("all 150 equal calls");
  await page.keyboard.press("Control+Enter");
  const report = page.getByText("120 equal calls may still wait. Reject them.");
  await report.waitFor();
  await page.getByText("170 waiting for an answer").waitFor({ state: "attached" });
  await passTime(page, farewellMs);
  expect(await report.count()).toBe(1);
  await page.unroute("**/RespondToPermission");
  await page.locator(".ask-row").getByText("npm test").click();
  await openReasons(page);
  await page.getByRole("combobox").selectOption("all 120 equal calls");
  // The list of what it reaches has the focus of a person who chose by keys.
  await page.getByRole("combobox").press("Control+Enter");
  await page.getByText("50 waiting for an answer").waitFor({ state: "attached" });
  await report.waitFor({ state: "detached" });
});

test("on a phone the filter finds a request, and one reason rejects all of its agent", async () => {
  const page = await inboxOf200({ viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
  await page.getByRole("searchbox", { name: "Filter" }).fill("part-155");
  await page.locator(".ask-row").getByText("make part-155").tap();
  await untilRejectable(page);
  await page.getByRole("button", { name: "Reject" }).tap();
  await page.getByLabel(/What should it do instead/).fill("Stop.");
  await page.getByRole("combobox").selectOption("all that wait of agent build");
  expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(360);
  await page.getByRole("button", { name: "Reject all" }).tap();
  await page.getByText("1 waiting for an answer").waitFor({ state: "attached" });
  await page.getByRole("link", { name: "← Inbox" }).tap();
  await page.getByRole("searchbox", { name: "Filter" }).fill("");
  await page.locator(".ask-row").getByText("rm -rf build").waitFor();
});
