import { expect, test } from "vitest";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { untilLive, useBrowsers } from "./browser.ts";

const service = useService({ settings: "[limits]\nopen_asks = 2000\nrunning_calls = 2000\n" });
const browsers = useBrowsers();

test("of 1,000 open asks only the visible ones are rendered, and the last one can be selected", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const numbers = Array.from({ length: 1_000 }, (_, i) => i);
  for (let from = 0; from < numbers.length; from += 50) {
    const calls = numbers
      .slice(from, from + 50)
      .map((i) =>
        agent.tools.callTool({ sessionId, callId: `c${i}`, tool: "bash", input: { command: `echo ${i}` }, waitMs: 0 }),
      );
    await Promise.all(calls);
  }
  const approver = connect(service, "approver");
  await expect
    .poll(async () => (await approver.permissions.listPermissions({ pageSize: 500 })).nextPageToken)
    .not.toBe("");

  const page = await browsers.open(service, "approver");
  await untilLive(page);
  await page.getByText("1000 waiting for an answer").waitFor({ state: "attached" });
  await page.addInitScript(markFirstRow);
  await page.reload();
  const rows = page.locator(".ask-row");
  await rows.first().waitFor();
  const painted = await page.evaluate("performance.getEntriesByName('first row')[0]?.startTime");
  console.log(`1,000 open asks: the first is painted ${Math.round(Number(painted))} ms after the page was asked for`);
  await page.getByText("1000 waiting for an answer").waitFor({ state: "attached" });
  expect(await rows.count()).toBeLessThan(30);
  await page.locator(".list-pane .virtual").evaluate((list) => list.scrollTo(0, 1_000_000));
  const last = page.locator('.virtual-row[aria-posinset="1000"] .ask-row');
  await last.click();
  await page.locator('.virtual-row[aria-posinset="1000"] .ask-row[aria-current]').waitFor();
});

test("a session of 3,000 events renders few rows at any scroll position", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, agent: "free", tool: "echo", input: { text: "x" } };
  let events = 0n;
  for (let round = 0; events < 3_000n; round += 1) {
    const calls = Array.from({ length: 20 }, (_, i) =>
      agent.tools.callTool({ ...call, callId: `c${round}-${i}`, input: { text: `${round} ${i}` } }),
    );
    for (const { lastSeq } of await Promise.all(calls)) if (lastSeq > events) events = lastSeq;
  }
  const page = await browsers.open(service, "approver", { path: `/sessions/${sessionId}` });
  const rows = page.locator(".call-row");
  await rows.first().waitFor();
  const total = async () => Number(await page.locator(".virtual-row").last().getAttribute("aria-setsize"));
  await expect.poll(total).toBeGreaterThan(900);
  const frames: number[] = [];
  for (let step = 0; step <= 20; step += 1) {
    frames.push(Number(await page.evaluate(jumpTo(step / 20))));
    expect(await rows.count()).toBeLessThan(40);
  }
  const sorted = frames.toSorted((a, b) => a - b);
  console.log(
    `a session of ${events} events: a jump is drawn in ${sorted[10]?.toFixed(0)} ms (two frames), at most ${sorted.at(-1)?.toFixed(0)} ms`,
  );
});

/** Marks the time of the first painted ask. */
const markFirstRow = `new MutationObserver((_, observer) => {
  if (document.querySelector(".ask-row") === null) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => performance.mark("first row")));
}).observe(document, { childList: true, subtree: true })`;

/** Scrolls the list to a fraction of its height; evaluates to the time until it was drawn. */
const jumpTo = (share: number) => `(async () => {
  const list = document.querySelector(".list-pane .virtual");
  const start = performance.now();
  list.scrollTo(0, list.scrollHeight * ${share});
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  return performance.now() - start;
})()`;
