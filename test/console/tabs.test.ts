import { expect, test } from "vitest";
import { useService } from "../e2e/service.ts";
import { ask } from "./ask.ts";
import { answer, streamsOf, untilLive, untilQuiet, useBrowsers } from "./browser.ts";

const service = useService();
const browsers = useBrowsers();

test("four tabs share one stream, all show an ask, and the last one answers it", async () => {
  const browser = await browsers.browser();
  const streams = streamsOf(browser);
  const tabs = [];
  for (let i = 0; i < 4; i += 1) tabs.push(await browsers.open(service, "approver", { browser }));
  for (const tab of tabs) await untilLive(tab);
  const call = await ask(service, { command: "echo four" });
  for (const tab of tabs) await tab.getByRole("article").getByText("echo four").first().waitFor({ state: "attached" });
  await expect.poll(() => streams.open).toBe(1);
  await answer(tabs.at(-1) ?? fail(), /Approve once/);
  expect((await call.end()).part?.state.case).toBe("completed");
  for (const tab of tabs) await untilQuiet(tab);
});

test("when the leading tab is closed, another one takes over and misses nothing", async () => {
  const browser = await browsers.browser();
  const streams = streamsOf(browser);
  const first = await browsers.open(service, "approver", { browser });
  await untilLive(first);
  const second = await browsers.open(service, "approver", { browser });
  await untilLive(second);
  const calls = [await ask(service, { command: "echo before" })];
  await second.getByRole("article").getByText("echo before").first().waitFor();
  await first.close();
  calls.push(await ask(service, { command: "echo after" }));
  await second.getByRole("link", { name: "echo after" }).waitFor();
  await expect.poll(() => streams.open).toBe(1);
  await answer(second, /Approve once/);
  await second.getByRole("article").locator(".command-line").getByText("echo after").waitFor();
  await answer(second, /Approve once/);
  for (const call of calls) expect((await call.end()).part?.state.case).toBe("completed");
});

test("tabs of different principals in one browser share no asks", async () => {
  const browser = await browsers.browser();
  const approver = await browsers.open(service, "approver", { browser });
  await untilLive(approver);
  const stranger = await browsers.open(service, "stranger", { browser });
  await untilLive(stranger);
  const call = await ask(service, { command: "echo private" });
  await approver.getByRole("article").getByText("echo private").first().waitFor();
  await answer(approver, /Approve once/);
  await call.end();
  await ask(service, { command: "echo own" }, { who: "stranger" });
  await stranger.getByRole("link", { name: "echo own" }).waitFor();
  expect(await stranger.getByRole("list", { name: "Calls waiting for an answer" }).getByRole("link").count()).toBe(1);
});

test("without locks, as on a page without TLS from another machine, each tab listens for itself", async () => {
  const browser = await browsers.browser();
  await browser.addInitScript("Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })");
  const tabs = [
    await browsers.open(service, "approver", { browser }),
    await browsers.open(service, "approver", { browser }),
  ];
  const call = await ask(service, { command: "echo alone" });
  for (const tab of tabs) await tab.getByRole("article").getByText("echo alone").first().waitFor();
  await answer(tabs[0] ?? fail(), /Approve once/);
  expect((await call.end()).part?.state.case).toBe("completed");
  for (const tab of tabs) await untilQuiet(tab);
});

function fail(): never {
  throw new Error("there is no such tab");
}
