import type { JsonObject } from "@bufbuild/protobuf";
import type { Page } from "playwright-core";
import { expect, onTestFinished, test } from "vitest";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { farewellOf, untilLive, untilRejectable, useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";

const browsers = useBrowsers();
const service = useService();

const form = [
  {
    question: "Which database should the tests use?",
    header: "Database",
    options: [
      { label: "SQLite", description: "One file, no server" },
      { label: "Redis", description: "As in production" },
    ],
    custom: false,
  },
  {
    question: "Which ports does it listen on?",
    header: "Ports",
    options: [{ label: "80" }, { label: "443" }],
    multiple: true,
  },
  { question: "Anything else that I should know?", header: "" },
];

/** Asks questions in a new session, and cancels the call after the test. */
async function ask(input: JsonObject = { questions: form }) {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession({ title: "Set up the tests" });
  const call = { sessionId, callId: "c1", tool: "question", input };
  await agent.tools.callTool({ ...call, waitMs: 0 });
  onTestFinished(async () => void (await agent.tools.cancelTool(call)));
  return async () => (await agent.tools.callTool(call)).part?.state.value;
}

const card = (page: Page) => page.getByRole("article");
const send = (page: Page) => card(page).getByRole("button", { name: /^Send/ });

test("a form with one choice, several choices and free text is answered", async () => {
  const page = await browsers.open(service, "approver");
  await untilLive(page);
  const end = await ask();
  await card(page).getByRole("heading", { name: "build asks 3 questions" }).waitFor();
  await untilRejectable(page);
  expect(await send(page).getAttribute("aria-disabled")).toBe("true");
  await card(page).getByText("An answer runs nothing").waitFor();
  await page
    .getByRole("group", { name: /Database/ })
    .getByRole("radio", { name: /Redis/ })
    .check();
  const ports = page.getByRole("group", { name: /Ports/ });
  await ports.getByRole("checkbox", { name: "443" }).check();
  await ports.getByRole("checkbox", { name: "In my own words" }).check();
  await ports.getByRole("textbox").fill("8080\u202e");
  const farewell = farewellOf(page, "Answered by approver: Redis; 443, 8080\\u{202e}; no answer");
  await card(page).getByRole("button", { name: "Send 2 of 3" }).click();
  await farewell;
  expect(await end()).toMatchObject({ metadata: { answers: [["Redis"], ["443", "8080\u202e"], []] } });
});

test("no key of an approval answers a question; o goes to its fields, and Ctrl Enter sends", async () => {
  const page = await browsers.open(service, "approver");
  const end = await ask({ question: "Go on?", options: ["Yes", "No"] });
  await card(page).getByText("Go on?").waitFor();
  await untilRejectable(page);
  for (const key of ["a", "e", "Enter", "o"]) await page.keyboard.press(key);
  expect(await page.locator("input:focus").count()).toBe(1);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  expect(await page.getByRole("radio", { name: "No" }).isChecked()).toBe(true);
  expect((await connect(service, "approver").permissions.listPermissions({})).permissions).toHaveLength(1);
  await page.keyboard.press("Control+Enter");
  expect(await end()).toMatchObject({ metadata: { answers: [["No"]] } });
});

test("an answer that is not sent yet is still there after a look at the session", async () => {
  const page = await browsers.open(service, "approver");
  const end = await ask({ question: "Go on?", options: ["Yes", "No"] });
  await untilRejectable(page);
  await page.getByRole("radio", { name: "In my own words" }).check();
  await page.getByRole("textbox").fill("Only tests.");
  await card(page).getByRole("link", { name: "Set up the tests" }).click();
  await page.getByRole("heading", { name: "Set up the tests" }).waitFor();
  await page.getByRole("navigation").getByRole("link", { name: /Inbox/ }).click();
  await untilRejectable(page);
  expect(await page.getByRole("textbox").inputValue()).toBe("Only tests.");
  await send(page).click();
  expect(await end()).toMatchObject({ metadata: { answers: [["Only tests."]] } });
});

test("a question is dismissed with feedback", async () => {
  const page = await browsers.open(service, "approver");
  const end = await ask({ question: "Go on?" });
  await untilRejectable(page);
  await page.keyboard.press("r");
  await page.getByLabel(/What should it do without an answer/).fill("Look in the readme.");
  await page.getByRole("button", { name: "Dismiss" }).click();
  expect(await end()).toMatchObject({
    reason: ToolErrorReason.REJECTED,
    error: "The user dismissed this question. Their feedback: Look in the readme.",
  });
});

test("a question that another person answers says who it was, also at its link", async () => {
  const page = await browsers.open(service, "approver");
  await ask();
  await untilRejectable(page);
  await page.getByRole("radio", { name: /SQLite/ }).check();
  const deputy = connect(service, "deputy");
  const [open] = (await deputy.permissions.listPermissions({})).permissions;
  const { id: permissionId = "", sessionId = "" } = open ?? {};
  const answers = [{ values: ["Redis"] }, {}, { values: ["Be quick."] }];
  await deputy.permissions.respondToPermission({ sessionId, permissionId, reply: 1, answers });
  await card(page).getByText("Answered by deputy: Redis; no answer; Be quick.").waitFor();
  expect(await send(page).count()).toBe(0);
  const later = await browsers.open(service, "approver", { path: `/requests/${permissionId}` });
  await card(later).getByRole("heading", { name: "build asked 3 questions" }).waitFor();
  expect(await card(later).locator("dd").allInnerTexts()).toEqual(["Redis", "No answer", "Be quick."]);
});

test("a watcher sees the questions and cannot answer", async () => {
  const page = await browsers.open(service, "watcher");
  await ask();
  await card(page).getByText("Only the role approver can answer.").waitFor();
  expect(await page.getByRole("radio", { name: /SQLite/ }).isDisabled()).toBe(true);
  expect(await send(page).count()).toBe(0);
});

test("on a phone the whole form is reachable and nothing is wider than the screen", async () => {
  const page = await browsers.open(service, "approver", {
    viewport: { width: 360, height: 740 },
    hasTouch: true,
    colorScheme: "dark",
    reducedMotion: "reduce",
  });
  const long = "x".repeat(90);
  const end = await ask({
    questions: [...form, { question: `${long}\nA second line`, header: "Long", options: [long, "short"] }],
  });
  await page.getByRole("link", { name: /Which database/ }).tap();
  await untilRejectable(page);
  await page.getByRole("radio", { name: "short" }).tap();
  await page.getByRole("textbox", { name: "Question 3: in my own words" }).fill("No.");
  expect(await sticksOut(page)).toBe(0);
  expect(await findings(page)).toEqual([]);
  await send(page).tap();
  expect(await end()).toMatchObject({ metadata: { answers: [[], [], ["No."], ["short"]] } });
});
