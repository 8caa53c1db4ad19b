import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { Page } from "playwright-core";
import { expect, test, vi } from "vitest";
import {
  SuggestRulesRequestSchema,
  SuggestRulesResponseSchema,
} from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { farewellMs } from "../../src/view/asks.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { ask } from "./ask.ts";
import { answer, answersOf, passTime, untilArmed, untilLive, useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";

const service = useService();
const browsers = useBrowsers();

test("a card takes no answer by key or click in its first half second", async () => {
  const context = await browsers.browser();
  await context.clock.install();
  const page = await browsers.open(service, "approver", { browser: context });
  await untilLive(page);
  // Fails if the time has passed meanwhile, but the clock stands then.
  await vi.waitFor(async () => await page.clock.pauseAt(Number(await page.evaluate("Date.now()")) + 500), {
    timeout: 60_000,
  });
  const { end } = await ask(service, { command: "echo quick" });
  const once = page.getByRole("button", { name: /Approve once/ });
  await once.waitFor();
  // One frame, in which the page renders the card.
  await page.clock.runFor(20);
  const answers = answersOf(page);
  await page.clock.runFor(450);
  await page.keyboard.press("o");
  await once.dispatchEvent("click");
  expect(await once.getAttribute("aria-disabled")).toBe("true");
  await page.clock.runFor(60);
  await expect.poll(() => once.getAttribute("aria-disabled")).toBe("false");
  expect(answers).toEqual([]);
  await once.dispatchEvent("click");
  expect((await end()).part?.state.case).toBe("completed");
});

test("hostile text is shown escaped and never becomes part of the page", async () => {
  const html = '<img src=x onerror="document.title=1"><script>document.title=2</script><b>bold</b>';
  const command = `echo '${html}' # \u202Egnp.sh \u200B \u001b[2J\u001b[31m`;
  const { call } = await ask(
    service,
    { command, description: `Harmless ${html} \u202E` },
    { title: `${html} \u202Eeltit` },
  );
  const page = await browsers.open(service, "approver");
  const card = page.getByRole("article");
  await card.getByText("Look closely").waitFor();
  for (const shown of [html, "\\u{202e}", "\\u{200b}", "\\u{1b}[2J"])
    await expect.poll(() => card.innerText()).toContain(shown);
  expect(await hiddenIn(page)).toEqual([]);
  await page.getByRole("link", { name: "<img src=x" }).first().waitFor();
  expect(await page.locator("#app :is(img, script, b:text('bold'))").count()).toBe(0);
  await expect.poll(() => page.title()).toBe("(1) Inbox · Toolgate");
  await page.goto(`${service.url}/#/sessions/${call.sessionId}/c1`);
  await page.getByRole("region", { name: "Call", exact: true }).getByText("<script>").first().waitFor();
  expect(await hiddenIn(page)).toEqual([]);
});

test("an ask of 10,000 lines is rendered in full on demand, can be scrolled to its end, and rejected at once", async () => {
  const command = Array.from({ length: 10_000 }, (_, i) => `: ${i}`).join("\n");
  await ask(service, { command });
  const page = await browsers.open(service, "approver");
  const lines = page.locator(".command-line");
  await page.getByRole("button", { name: "Show all 68889 characters" }).click();
  await expect.poll(() => lines.count()).toBe(10_000);
  await lines.last().scrollIntoViewIfNeeded();
  expect(await lines.last().textContent()).toBe(": 9999");
  await answer(page, /Reject/);
  await page.getByRole("button", { name: /^Reject/ }).click();
  await page.getByText("All quiet").waitFor();
});

test("a key press in a field answers nothing", async () => {
  const { call } = await ask(service, { command: "echo typed" });
  const page = await browsers.open(service, "approver");
  await untilArmed(page);
  const answers = answersOf(page);
  await page.keyboard.press("r");
  const advice = page.getByLabel(/What should it do instead/);
  await advice.pressSequentially("do are oo");
  expect(await advice.inputValue()).toBe("do are oo");
  await page.keyboard.press("Escape");
  await untilArmed(page);
  expect(answers).toEqual([]);
  expect((await connect(service, "approver").tools.getToolPart(call)).part?.state.case).toBe("pending");
});

test("in a narrow window, where only the list is visible, a key answers nothing", async () => {
  const { call } = await ask(service, { command: "echo unseen" });
  const page = await browsers.open(service, "approver", { viewport: { width: 500, height: 700 } });
  await page.getByRole("link", { name: "echo unseen" }).waitFor();
  // The card exists and is armed, but hidden.
  await page.locator('.answer-bar button[aria-disabled="false"]').first().waitFor({ state: "attached" });
  const answers = answersOf(page);
  await page.keyboard.press("o");
  await page.keyboard.press("r");
  // In a wide window the card is visible, with the form that a key has opened in place of its buttons.
  await page.setViewportSize({ width: 1280, height: 700 });
  await untilArmed(page);
  expect(await page.getByLabel(/What should it do instead/).count()).toBe(0);
  expect(answers).toEqual([]);
  expect((await connect(service, "approver").tools.getToolPart(call)).part?.state.case).toBe("pending");
});

test("on a phone the arguments that are asked for after an edit are alone on the card, and stay there", async () => {
  const { call, end } = await ask(service, { command: "echo wrong" });
  const { permissions } = connect(service, "approver");
  const open = async () => (await permissions.listPermissions({ sessionId: call.sessionId })).permissions;
  await expect.poll(open).toHaveLength(1);
  const page = await browsers.open(service, "approver", {
    ...{ viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
    path: `/requests/${(await open())[0]?.id}`,
  });
  await untilArmed(page);
  await page.getByRole("button", { name: /Edit/ }).click();
  await page.getByRole("textbox", { name: "command" }).fill("echo right");
  await page.getByRole("button", { name: "Use these arguments" }).click();
  const card = page.getByRole("article");
  await card.locator(".command-line").getByText("echo right").waitFor();
  const title = () => card.locator(".ask-what").getAttribute("data-what");
  expect([await title(), await card.locator(".command-line").allInnerTexts()]).toEqual(["echo right", ["echo right"]]);
  await passTime(page, farewellMs);
  await answer(page, /Approve once/);
  expect((await end()).part?.state.value).toMatchObject({ output: expect.stringMatching(/^right\n/) });
});

test("the second half of a double click on the button of a form is not for the form", async () => {
  const { call } = await ask(service, { command: "echo twice" });
  const page = await browsers.open(service, "approver");
  await untilArmed(page);
  const answers = answersOf(page);
  // The form has its button where the left edge of this one was.
  await page.getByRole("button", { name: /Always/ }).dblclick({ position: { x: 6, y: 12 } });
  await page.getByRole("button", { name: "Approve and remember" }).waitFor();
  await untilArmed(page);
  expect(answers).toEqual([]);
  const { permissions } = connect(service, "approver");
  expect((await permissions.listGrants({ sessionId: call.sessionId })).grants).toEqual([]);
});

test("on a tablet the request has more than half of the width, next to the list", async () => {
  await ask(service, { command: "echo tablet" });
  const page = await browsers.open(service, "approver", { viewport: { width: 820, height: 1180 } });
  await untilArmed(page);
  const widthOf = async (name: string) =>
    (await page.getByRole("region", { name, exact: true }).boundingBox())?.width ?? 0;
  expect(await widthOf("Request")).toBeGreaterThan(410);
  expect(await widthOf("Requests")).toBeGreaterThan(150);
});

test("on a phone a card has the rule for what people approved again and again, folded, and it moves no button", async () => {
  const rule = { approvals: 12, days: 3, toml: '[agent.build.permission.bash]\n"echo *" = "allow"\n' };
  const found = toBinary(SuggestRulesResponseSchema, create(SuggestRulesResponseSchema, { rules: [rule] }));
  const asked = Promise.withResolvers<unknown>();
  const go = Promise.withResolvers<void>();
  const context = await browsers.browser({ viewport: { width: 375, height: 667 }, hasTouch: true, isMobile: true });
  await context.route("**/SuggestRules", async (route) => {
    asked.resolve(fromBinary(SuggestRulesRequestSchema, route.request().postDataBuffer() ?? Buffer.of()));
    await go.promise;
    await route.fulfill({ contentType: "application/proto", body: Buffer.from(found) });
  });
  const { call } = await ask(service, { command: "echo often" });
  const page = await browsers.open(service, "approver", { browser: context });
  await page.getByRole("link", { name: "echo often" }).click();
  await untilArmed(page);
  const { permissions } = await connect(service, "approver").permissions.listPermissions(call);
  expect(await asked.promise).toMatchObject({ permissionId: permissions[0]?.id });
  const once = page.getByRole("button", { name: /Approve once/ });
  const before = await once.boundingBox();
  go.resolve();
  const note = page.getByText("Approved 12 times on 3 days, never rejected: a rule could answer it");
  await note.waitFor();
  expect(await once.boundingBox()).toEqual(before);
  await note.click();
  await page.getByText('"echo *" = "allow"').waitFor();
  expect(await sticksOut(page)).toBeLessThanOrEqual(0);
  expect(await findings(page)).toEqual([]);
});

test("j and k move between calls; each move makes the card inert again", async () => {
  for (const command of ["echo first", "echo second"]) await ask(service, { command });
  const page = await browsers.open(service, "approver");
  await untilArmed(page);
  const command = page.getByRole("article").locator(".command-line");
  await expect.poll(() => command.innerText()).toBe("echo first");
  await page.keyboard.press("j");
  await expect.poll(() => command.innerText()).toBe("echo second");
  await page.keyboard.press("j");
  await page.keyboard.press("k");
  await expect.poll(() => command.innerText()).toBe("echo first");
});

/** Returns the hostile characters that the page shows unescaped. */
async function hiddenIn(page: Page): Promise<string[]> {
  const text = await page.locator("body").innerText();
  return ["\u202E", "\u200B", "\u001b"].filter((character) => text.includes(character));
}

test("a skill shows the text that the model will read, and is approved once all of it is on the page", async () => {
  const folder = join(service.workspace, ".opencode/skill/deploy");
  await mkdir(folder, { recursive: true });
  const steps = `Steps <b>bold</b>\n${"more\n".repeat(50)}last step`;
  await writeFile(join(folder, "SKILL.md"), `---\nname: deploy\ndescription: Deploy.\n---\n${steps}\n`);
  const { tools, newSession } = connect(service, "caller");
  const call = { sessionId: await newSession(), callId: "c1", tool: "skill", input: { name: "deploy" } };
  await tools.callTool({ ...call, waitMs: 0 });
  const page = await browsers.open(service, "approver");
  const card = page.getByRole("article");
  await card.getByRole("heading", { name: "build asks to load a skill" }).waitFor();
  const text = card.getByLabel("Beginning of the text for the model");
  await text.getByText("Steps <b>bold</b>").waitFor();
  await card.getByRole("region", { name: "End of the text for the model" }).getByText("last step").waitFor();
  await page.getByRole("button", { name: /^Show all/ }).click();
  await answer(page, /Approve once/);
  expect((await tools.callTool(call)).part?.state.case).toBe("completed");
});
