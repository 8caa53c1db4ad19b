import { describe, expect, test } from "vitest";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { farewellMs } from "../../src/view/asks.ts";
import { connect } from "../e2e/clients.ts";
import { startFront } from "../e2e/front.ts";
import { ask } from "./ask.ts";
import { answer, farewellOf, passTime, untilArmed, untilLive, untilQuiet, useBrowsers } from "./browser.ts";
import { testedStores, useServiceOn } from "./stores.ts";

const browsers = useBrowsers();

describe.each(testedStores)("the inbox, on %s", (store) => {
  const service = useServiceOn(store);

  test("the link signs in, and its token leaves the address and the history", async () => {
    const page = await browsers.open(service(), "approver");
    await untilLive(page);
    expect(page.url()).not.toContain("token");
    await page.reload();
    await untilLive(page);
    await page.goBack();
    expect(page.url()).not.toContain("token");
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Code or token").fill("not-one");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").getByText("the token is not known").waitFor();
    await page.getByLabel("Code or token").fill("approver-token-for-tests");
    await page.getByRole("button", { name: "Sign in" }).click();
    await untilLive(page);
  });

  test("a new ask appears with its agent, request and reason, and approving it once runs the call", async () => {
    const page = await browsers.open(service(), "approver");
    await untilLive(page);
    const call = await ask(service(), { command: "echo one && echo two" }, { title: "Count to two" });
    const card = page.getByRole("article");
    await card.getByRole("heading", { name: "build asks to run a command" }).waitFor();
    await card.getByRole("link", { name: "Count to two" }).waitFor();
    await expect.poll(() => card.locator(".reason-text").allInnerTexts()).toEqual(["echo one", "echo two"]);
    const why = card.locator(".reason-why").first();
    await expect.poll(() => why.innerText()).toContain("No rule matches, so it needs approval.");
    await card.getByText(/\d+:\d\d left/).waitFor();
    await expect.poll(() => page.title()).toBe("(1) Inbox · Toolgate");
    await expect.poll(() => page.locator("link[rel=icon]").getAttribute("href")).toContain("icon-waiting");
    const farewell = farewellOf(page, "Approved once by approver");
    await answer(page, /Approve once/);
    await farewell;
    expect((await call.end()).part?.state.value).toMatchObject({ output: "one\ntwo\n" });
    await untilQuiet(page);
    await expect.poll(() => page.title()).toBe("Inbox · Toolgate");
  });

  test("an answer of another browser is shown with its author, then the ask disappears", async () => {
    const [here, there] = await Promise.all([browsers.open(service(), "approver"), browsers.open(service(), "deputy")]);
    const call = await ask(service(), { command: "echo shared" });
    await here.getByRole("article").getByText("echo shared").first().waitFor();
    await there.getByRole("article").getByText("echo shared").first().waitFor();
    await answer(there, /Approve once/);
    await here.getByRole("article").getByText("Approved once by deputy").waitFor();
    await untilQuiet(here);
    expect((await call.end()).part?.state.case).toBe("completed");
  });

  test("rejecting sends the advice to the model", async () => {
    const page = await browsers.open(service(), "approver");
    const call = await ask(service(), { command: "rm -rf everything" });
    await page.getByRole("article").waitFor();
    await untilArmed(page);
    await page.keyboard.press("r");
    await page.getByLabel(/What should it do instead/).fill("Move it to archive/ instead.");
    await page.keyboard.press("Control+Enter");
    const { part } = await call.end();
    expect(part?.state.value).toMatchObject({
      reason: ToolErrorReason.REJECTED,
      error: expect.stringContaining("Move it to archive/ instead."),
    });
  });

  test("all that wait in a session are rejected with one reason, and nothing else", async () => {
    const page = await browsers.open(service(), "approver");
    const call = await ask(service(), { command: "echo first" });
    const again = { ...call.call, callId: "c2", input: { command: "echo second" } };
    await call.agent.tools.callTool({ ...again, waitMs: 0 });
    await ask(service(), { command: "echo other session" });
    await page.getByText("3 waiting for an answer").waitFor({ state: "attached" });
    await untilArmed(page);
    await page.keyboard.press("r");
    await page.getByLabel(/What should it do instead/).fill("Stop here.");
    await page.getByRole("combobox").selectOption("all that wait in this session");
    await page.getByRole("button", { name: /^Reject all/ }).click();
    for (const { part } of [await call.end(), await call.agent.tools.callTool(again)])
      expect(part?.state.value).toMatchObject({ error: expect.stringContaining("Stop here.") });
    await page.getByText("1 waiting for an answer").waitFor({ state: "attached" });
  });

  test("always saves the selected offer with the text that was shown", async () => {
    const page = await browsers.open(service(), "approver");
    const call = await ask(service(), { command: "echo again" });
    await page.getByRole("article").waitFor();
    await untilArmed(page);
    await page.keyboard.press("a");
    const options = (name: string) => page.getByRole("group", { name }).getByRole("radio");
    await expect.poll(() => options("From now on, allow").first().isChecked()).toBe(true);
    await expect
      .poll(() => page.locator(".choice label").allInnerTexts())
      .toEqual(["exactly this", "commands that begin with “echo”", "this session", "agent build", "this workspace"]);
    await expect.poll(() => page.locator(".subject").innerText()).toBe("echo again");
    await page.getByLabel("commands that begin with “echo”").check();
    await page
      .getByText('Allow every bash command that begins with the words "echo" (no options; no risk) in this session')
      .waitFor();
    await page.getByLabel("exactly this").check();
    await expect
      .poll(() => page.locator(".saved").innerText())
      .toMatch(/^Allow bash "echo again" in this session and its children\. /);
    await page.getByRole("combobox", { name: "with" }).selectOption("1 hour");
    await page.getByRole("combobox", { name: "for" }).selectOption("5 more calls");
    const before = Date.now();
    await answer(page, "Approve and remember");
    await call.end();
    const again = await call.agent.tools.callTool({ ...call.call, callId: "c2" });
    expect(again.part?.state.case).toBe("completed");
    const { grants } = await connect(service(), "approver").permissions.listGrants({ sessionId: call.call.sessionId });
    expect(grants[0]?.text).toMatch(
      /^Allow bash "echo again" in this session and its children, at most 5 more times, at most until /,
    );
    expect(grants[0]).toMatchObject({ times: 5, left: 4 });
    expect(grants[0]?.expires).toBeGreaterThanOrEqual(before + 3_600_000);
  });

  test("the hour that a grant lasts is one of the service's clock", async () => {
    const browser = await browsers.browser();
    await browser.clock.setFixedTime(Date.now() + 86_400_000);
    const page = await browsers.open(service(), "approver", { browser });
    const call = await ask(service(), { command: "echo timely" });
    await untilArmed(page);
    await page.keyboard.press("a");
    await page.getByRole("combobox", { name: "with" }).selectOption("1 hour");
    await page.getByText("at most for 1 hour").waitFor();
    const before = Date.now();
    await answer(page, "Approve and remember");
    await call.end();
    const { grants } = await connect(service(), "approver").permissions.listGrants({ sessionId: call.call.sessionId });
    const [hour, end] = [3_600_000, grants[0]?.expires ?? 0];
    expect(end).toBeGreaterThanOrEqual(before + hour);
    expect(end).toBeLessThan(before + 2 * hour);
  });

  test("edited arguments ask again, and the arguments that were shown last run", async () => {
    const page = await browsers.open(service(), "approver");
    const call = await ask(service(), { command: "echo wrong" });
    await page.getByRole("article").waitFor();
    await untilArmed(page);
    await page.keyboard.press("e");
    await page.getByRole("textbox", { name: "command" }).fill("echo right");
    await page.getByRole("button", { name: "Use these arguments" }).click();
    const right = page.getByRole("article").locator(".command-line").getByText("echo right");
    await expect
      .poll(async () => {
        await passTime(page, farewellMs);
        return await right.count();
      })
      .toBe(1);
    await answer(page, /Approve once/);
    expect((await call.end()).part?.state.value).toMatchObject({ output: expect.stringContaining("right\n") });
  });

  test("the page reports that the service is away; afterwards it shows the waiting call and answers it", async () => {
    const page = await browsers.open(service(), "approver");
    await untilLive(page);
    const call = await ask(service(), { command: "echo before" });
    await page.getByRole("article").getByText("echo before").first().waitFor();
    await service().kill();
    await page.getByText("Not live: connection lost, trying again").waitFor();
    await service().start();
    await untilLive(page);
    await answer(page, /Approve once/);
    const after = connect(service(), "caller");
    expect((await after.tools.callTool(call.call)).part?.state.value).toMatchObject({ output: "before\n" });
  });

  test("an answer that was given while the page was disconnected is shown with its author", async () => {
    const front = await startFront([service().url]);
    const page = await browsers.open(front, "approver");
    await untilLive(page);
    const call = await ask(service(), { command: "echo away" });
    await page.getByRole("article").getByText("echo away").first().waitFor();
    await page.route("**/WatchMany", (route) => route.abort());
    front.cut();
    await page.getByText("Not live: connection lost, trying again").waitFor();
    const { permissions } = connect(service(), "deputy");
    const [open] = (await permissions.listPermissions({ sessionId: call.call.sessionId })).permissions;
    const { sessionId = "", id: permissionId = "" } = open ?? {};
    await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
    await page.unroute("**/WatchMany");
    await page.getByRole("article").getByText("Rejected by deputy").waitFor();
    await untilQuiet(page);
  });

  test("a watcher sees the request but no answer buttons", async () => {
    const call = await ask(service(), { command: "echo seen" });
    const page = await browsers.open(service(), "watcher");
    await page.getByRole("article").getByText("echo seen").first().waitFor();
    await page.getByText("Only the role approver can answer").waitFor();
    expect(await page.getByRole("button", { name: /Approve|Reject/ }).count()).toBe(0);
    await call.agent.tools.cancelTool({ sessionId: call.call.sessionId, callId: call.call.callId });
    await untilQuiet(page);
  });
});
