import type { Locator, Page } from "playwright-core";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { ask } from "./ask.ts";
import { answer, answersOf, untilArmed, useBrowsers } from "./browser.ts";
import { findings } from "./findings.ts";

const service = useService();
const browsers = useBrowsers();
let sessionId = "";
/** A request that was answered. */
let settledId = "";

beforeAll(async () => {
  const agent = connect(service, "caller");
  sessionId = await agent.newSession({ title: "A session with calls" });
  const call = { sessionId, agent: "free", tool: "bash" };
  await agent.tools.callTool({ ...call, callId: "c1", input: { command: colours } });
  await agent.tools.callTool({ ...call, callId: "c2", tool: "read", input: { filePath: "missing" } });
  const { permissions } = connect(service, "approver");
  await agent.tools.callTool({ ...call, callId: "c3", agent: "build", input: { command: "sh run.sh" }, waitMs: 0 });
  const { id } = await requestOf({ call: { sessionId } });
  await permissions.respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.ONCE });
  settledId = id;
});

/** The open request of a session. */
async function requestOf({ call: { sessionId } }: { call: { sessionId: string } }): Promise<PermissionRequest> {
  const { permissions } = connect(service, "approver");
  const open = async () => (await permissions.listPermissions({ sessionId })).permissions;
  return await vi.waitFor(async () => {
    const [request] = await open();
    if (request === undefined) throw new Error("no request is open yet");
    return request;
  });
}

/** A line in each terminal colour, including bright colours and backgrounds. */
const colours = [30, 40, 90, 100]
  .flatMap((base) => Array.from({ length: 8 }, (_, i) => `printf '\\033[${base + i}mcolour\\033[0m\\n'`))
  .join("; ");

const phone = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 };
const screens = [
  ["desktop", {}],
  ["phone", phone],
] as const;
const places = [
  ...["/inbox", "/card", "/outcome", "/sessions", "/session", "/call"],
  ...["/policy", "/policy/explain", "/policy/log", "/tools", "/tools/bash", "/sources", "/workers"],
];

/** Waits until a page shows its content. */
async function untilShown(page: Page, place: string): Promise<void> {
  const content: Readonly<Record<string, Locator>> = {
    "/inbox": page.locator(".ask-row").first(),
    "/card": page.locator(".answer-bar"),
    "/outcome": page.locator(".outcome"),
    "/sessions": page.getByRole("link", { name: /^A session/ }).first(),
    "/session": page.locator(".call-row").nth(1),
    "/call": page.locator(".output-line").first(),
    "/policy": page.getByRole("table").first(),
    "/tools/bash": page.getByText("Call this tool"),
    "/tools": page.getByRole("link", { name: /^bash / }),
  };
  await (content[place] ?? page.getByRole("heading", { level: 1 }).first()).waitFor();
}

describe.each(["light", "dark"] as const)("in %s", (colorScheme) => {
  test.each(screens)("axe finds nothing at any page on a %s", async (_, screen) => {
    const { id } = await requestOf(await ask(service, { command: "echo checked && rm -rf x" }));
    const page = await browsers.open(service, "approver", { ...screen, colorScheme, reducedMotion: "reduce" });
    const paths: Readonly<Record<string, string>> = {
      "/card": `/requests/${id}`,
      "/outcome": `/requests/${settledId}`,
      "/session": `/sessions/${sessionId}`,
      "/call": `/sessions/${sessionId}/c1`,
    };
    const found: string[] = [];
    for (const place of places) {
      await page.goto(`${service.url}/#${paths[place] ?? place}`);
      await untilShown(page, place);
      if (place === "/card") {
        await answer(page, /^Always/);
        await page.getByText("From now on, allow").waitFor();
      }
      found.push(...(await findings(page)).map((finding) => `${place}: ${finding}`));
    }
    expect(found).toEqual([]);
  });

  test("axe finds nothing on the sign-in page", async () => {
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
  const small = { ...phone, viewport: { width: 375, height: 667 } };

  test.each(["/inbox", "/sessions", "/policy", "/tools"])("nothing at %s is wider than the screen", async (path) => {
    await ask(service, { command: `echo ${"long".repeat(100)}` });
    const page = await browsers.open(service, "approver", { path, ...small });
    await untilShown(page, path);
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(375);
  });

  test("an ask can be selected, read and approved by touch", async () => {
    const call = await ask(service, { command: "echo from the train" });
    const page = await browsers.open(service, "approver", small);
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

test("? shows the keys, and no key answers while it does", async () => {
  await ask(service, { command: "echo keys" });
  const page = await browsers.open(service, "approver");
  await untilArmed(page);
  const answers = answersOf(page);
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).getByText("approve once").waitFor();
  await page.keyboard.press("o");
  await page.keyboard.press("r");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  expect(await page.locator(".answer-form").count()).toBe(0);
  expect(answers).toEqual([]);
});

test("on a phone the agent and the command stay in sight, and no form is cut off", async () => {
  const command = `echo ${"long ".repeat(200)}; cat .env; echo ${"x".repeat(300)}`;
  await ask(service, { command });
  const screens = [
    { width: 320, height: 640 },
    { width: 360, height: 640 },
  ];
  for (const viewport of screens) {
    const page = await browsers.open(service, "approver", { ...phone, viewport });
    await page.locator(".ask-row").tap();
    await untilArmed(page);
    await page.locator(".ids").scrollIntoViewIfNeeded();
    const title = await page.locator(".ask-title").boundingBox();
    expect(title?.y).toBe(0);
    for (const name of [/Always/, /Edit/, /Reject/]) {
      await page.getByRole("button", { name }).tap();
      const form = page.locator(".answer-form");
      expect(await form.evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)).toBe(0);
      // The buttons of the form are on the screen, above the navigation.
      const buttons = await form.locator(".answers").boundingBox();
      const navigation = await page.getByRole("navigation").boundingBox();
      expect((await form.boundingBox())?.y).toBeGreaterThan(0);
      expect((buttons?.y ?? 0) + (buttons?.height ?? 0)).toBeLessThanOrEqual(navigation?.y ?? 0);
      for (const limit of await form.locator(".limit").all()) {
        const [words, field] = [
          await limit.locator("span").evaluate((span) => span.scrollWidth - span.clientWidth),
          await limit.locator("select").boundingBox(),
        ];
        expect([words, (field?.x ?? 0) + (field?.width ?? 0) <= viewport.width]).toEqual([0, true]);
      }
      await page.getByRole("button", { name: "Back" }).tap();
    }
  }
});
