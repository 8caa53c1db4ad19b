import { fromBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, PermissionResponseSchema, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { farewellMs } from "../../src/view/asks.ts";
import { connect, refusal } from "../e2e/clients.ts";
import { startFront } from "../e2e/front.ts";
import type { Service } from "../e2e/service.ts";
import { type Asking, ask } from "./ask.ts";
import { answer, answersOf, passTime, untilArmed, untilLive, untilQuiet, useBrowsers } from "./browser.ts";
import { useServiceOn } from "./stores.ts";

const browsers = useBrowsers();

/** The open request of a call. */
async function requestOf(service: Pick<Service, "url">, { call }: Asking) {
  const { permissions } = connect(service, "deputy");
  const open = async () => (await permissions.listPermissions({ sessionId: call.sessionId })).permissions;
  await expect.poll(open).toHaveLength(1);
  const [request] = await open();
  if (request === undefined) throw new Error("the request was settled meanwhile");
  return request;
}

async function reply(
  service: Pick<Service, "url">,
  asking: Asking,
  how: PermissionReply,
  message = "",
): Promise<string> {
  const { id: permissionId, sessionId } = await requestOf(service, asking);
  await connect(service, "deputy").permissions.respondToPermission({ sessionId, permissionId, reply: how, message });
  return permissionId;
}

describe("a link to a request", () => {
  const service = useServiceOn("SQLite");

  test("names it by its id alone, while it is open and after its settlement, for those who may read its session", async () => {
    const asking = await ask(service(), { command: "echo found" });
    const { id: permissionId } = await requestOf(service(), asking);
    const { permissions } = connect(service(), "watcher");
    expect(await permissions.getPermission({ permissionId })).toMatchObject({
      permission: { id: permissionId, preview: { command: "echo found" } },
      part: { callId: "c1", state: { case: "pending" } },
    });
    await reply(service(), asking, PermissionReply.ONCE);
    await asking.end();
    expect(await permissions.getPermission({ permissionId })).toMatchObject({
      settled: { outcome: PermissionOutcome.ONCE, by: "deputy" },
      part: { state: { case: "completed" } },
    });
    const stranger = connect(service(), "stranger").permissions;
    const unknown = { code: Code.NotFound, reason: "NO_SUCH_PERMISSION" };
    expect(await refusal(stranger.getPermission({ permissionId }))).toMatchObject(unknown);
    expect(await refusal(permissions.getPermission({ permissionId: "per_x" }))).toMatchObject(unknown);
  });

  test("leads through the sign-in to the request, and changes nothing when a program follows it", async () => {
    await ask(service(), { command: "echo first" });
    const { id } = await requestOf(service(), await ask(service(), { command: "echo reached" }));
    const link = `${service().url}/r/${id}`;
    const before = await connect(service(), "watcher").permissions.getPermission({ permissionId: id });
    for (const method of ["GET", "HEAD", "POST"]) await (await fetch(link, { method })).text();
    expect(await connect(service(), "watcher").permissions.getPermission({ permissionId: id })).toEqual(before);
    const page = await (await browsers.browser()).newPage();
    const answers = answersOf(page);
    await page.goto(`${link}#token=caller-token-for-tests`);
    await page.getByLabel("Code or token").fill("approver-token-for-tests");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("article").locator(".command-line").getByText("echo reached").waitFor();
    expect(new URL(page.url())).toMatchObject({ pathname: "/", search: "", hash: `#/requests/${id}` });
    expect(answers).toEqual([]);
  });

  test("shows that request among others, also at its old address", async () => {
    await ask(service(), { command: "echo first" });
    const { id } = await requestOf(service(), await ask(service(), { command: "echo linked" }));
    const page = await browsers.open(service(), "approver", { path: `/inbox/${id}` });
    await page.getByRole("article").locator(".command-line").getByText("echo linked").waitFor();
    await expect.poll(() => page.url()).toContain(`#/requests/${id}`);
    const inbox = page.getByRole("link", { name: "Inbox" }).first();
    await expect.poll(() => inbox.getAttribute("aria-current")).toBe("page");
  });

  test("of an answered request says who answered, when and what came of it, and never shows another request", async () => {
    await ask(service(), { command: "echo other" });
    const done = await ask(service(), { command: "echo answered" });
    const id = await reply(service(), done, PermissionReply.ONCE);
    await done.end();
    const page = await browsers.open(service(), "approver", { path: `/requests/${id}` });
    const outcome = page.getByRole("article");
    await outcome.getByText("Approved once by deputy").waitFor();
    await expect.poll(() => outcome.innerText()).toMatch(/echo answered[\s\S]*The call completed/);
    await outcome.locator("time").waitFor();
    await page.getByRole("link", { name: "echo other" }).waitFor();
    expect(await page.getByRole("button", { name: /Approve/ }).count()).toBe(0);
    const answers = answersOf(page);
    await page.keyboard.press("o");
    // Leads to the other request and back, so that the key has had its effect.
    await page.getByRole("link", { name: "echo other" }).click();
    await untilArmed(page);
    await page.goBack();
    await outcome.getByText("Approved once by deputy").waitFor();
    expect(await outcome.getByText("echo other").count()).toBe(0);
    expect(answers).toEqual([]);
  });

  test("in an open page stays with its request when somebody else answers it", async () => {
    await ask(service(), { command: "echo other" });
    const watched = await ask(service(), { command: "echo watched" });
    const { id } = await requestOf(service(), watched);
    const page = await browsers.open(service(), "approver", { path: `/requests/${id}` });
    await untilArmed(page);
    await reply(service(), watched, PermissionReply.REJECT, "not today");
    await page.getByRole("article").getByText("Rejected by deputy: not today").waitFor();
    await expect
      .poll(async () => {
        await passTime(page, farewellMs);
        return await page.getByRole("article").innerText();
      })
      .toMatch(/The call ended: rejected/);
    expect(await page.getByRole("button", { name: /Approve/ }).count()).toBe(0);
    expect(page.url()).toContain(id);
  });

  test("that nobody knows says so", async () => {
    await ask(service(), { command: "echo other" });
    const page = await browsers.open(service(), "approver", { path: "/requests/per_unknown" });
    await page.getByText("This request is not known").waitFor();
    await page.getByRole("link", { name: "echo other" }).waitFor();
    expect(await page.getByRole("article").count()).toBe(0);
  });
});

describe("an answer", () => {
  const service = useServiceOn("SQLite");

  test("that arrived is reported as sent", async () => {
    const page = await browsers.open(service(), "approver");
    const call = await ask(service(), { command: "echo sent" });
    await answer(page, /Approve once/);
    await page.getByText("Sent: approved once").waitFor();
    await call.end();
  });

  test.each([
    ["once", /Approve once/],
    ["for an hour", /Approve and remember/],
  ])(
    "%s, whose response is missing, is reported so, and is sent again as the same, so that it counts once",
    async (how, button) => {
      const page = await browsers.open(service(), "approver");
      const sent: string[] = [];
      page.on("request", (request) => {
        const data = request.url().endsWith("/RespondToPermission") ? request.postDataBuffer() : null;
        if (data === null) return;
        const { replyId, expires } = fromBinary(PermissionResponseSchema, data);
        sent.push(`${replyId} ${expires}`);
      });
      const call = await ask(service(), { command: `echo ${how}` });
      await untilArmed(page);
      if (how !== "once") {
        await page.keyboard.press("a");
        await page.getByRole("combobox", { name: "with" }).selectOption("1 hour");
        await untilArmed(page);
      }
      await page.route("**/RespondToPermission", (route) => route.abort());
      await page.getByRole("button", { name: button }).click();
      await page.getByText("Sending…").waitFor();
      for (const pauseMs of [1_000, 2_000]) await expect.poll(() => passTime(page, pauseMs)).toBeUndefined();
      await page.getByRole("alert").getByText("This may have been sent").waitFor();
      await page.unroute("**/RespondToPermission");
      await answer(page, button);
      expect((await call.end()).part?.state.case).toBe("completed");
      // Four attempts that fail, and the one that arrives.
      expect(sent).toEqual(Array(5).fill(expect.stringMatching(/^[0-9a-f]{32} \d+$/)));
      expect(new Set(sent).size).toBe(1);
    },
  );

  test("into a network that stalls is not sent; withdrawn, it does not arrive when the network is back", async () => {
    const front = await startFront([service().url]);
    const page = await browsers.open(front, "approver");
    await untilLive(page);
    const call = await ask(service(), { command: "echo stalled" });
    await untilArmed(page);
    front.stall();
    await page.getByRole("button", { name: /Approve once/ }).click();
    await page.getByText("Sending…").waitFor();
    await page.getByRole("button", { name: "Withdraw" }).click();
    await page.getByRole("alert").getByText("Not sent: you withdrew the answer.").waitFor();
    await passTime(page, 8_000);
    await page.getByText("Not live: connection lost").waitFor();
    const once = page.getByRole("button", { name: /Approve once/ });
    await expect.poll(() => once.getAttribute("aria-disabled")).toBe("true");
    front.flow();
    await untilLive(page);
    // The same connections carry this answer, so the withdrawn one would have arrived before it.
    await reply(front, call, PermissionReply.REJECT);
    expect((await call.end()).part?.state.value).toMatchObject({ reason: ToolErrorReason.REJECTED });
  });

  test("can be no approval 10 s after the last byte of a stream that is still open, by the page's clock", async () => {
    const front = await startFront([service().url]);
    const browser = await browsers.browser();
    await browser.clock.install();
    const page = await browsers.open(front, "approver", { browser });
    await untilLive(page);
    await ask(service(), { command: "echo silent" });
    await untilArmed(page);
    front.stall();
    await page.clock.pauseAt(Number(await page.evaluate("Date.now()")) + 10_000);
    const once = page.getByRole("button", { name: /Approve once/ });
    await expect.poll(() => once.getAttribute("aria-disabled")).toBe("true");
    await page.getByText("Not live: connection lost").waitFor();
    front.flow();
    await page.clock.resume();
    await untilLive(page);
  });

  test("can be no approval while the page is not live", async () => {
    const page = await browsers.open(service(), "approver");
    await untilLive(page);
    const { call } = await ask(service(), { command: "echo late" });
    await untilArmed(page);
    await service().kill();
    await page.getByText("Not live: connection lost").waitFor();
    const once = page.getByRole("button", { name: /Approve once/ });
    await expect.poll(() => once.getAttribute("aria-disabled")).toBe("true");
    const always = page.getByRole("button", { name: /Always/ });
    await expect.poll(() => always.getAttribute("aria-disabled")).toBe("true");
    await page.keyboard.press("o");
    await service().start();
    await untilLive(page);
    await expect.poll(() => once.getAttribute("aria-disabled")).toBe("false");
    const { part } = await connect(service(), "approver").tools.getToolPart(call);
    expect(part?.state.case).toBe("pending");
  });
});

describe("a page that was away", () => {
  const service = useServiceOn("SQLite");

  test("reads how some of the requests ended that it shows, and no whole audit", async () => {
    const front = await startFront([service().url]);
    const page = await browsers.open(front, "approver");
    await untilLive(page);
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession();
    for (let i = 0; i < 25; i += 1) {
      const input = { command: `echo ${i}` };
      await agent.tools.callTool({ sessionId, callId: `c${i}`, tool: "bash", input, waitMs: 0 });
    }
    await page.getByText("25 waiting for an answer").waitFor({ state: "attached" });
    const reads: string[] = [];
    page.on("request", (request) => {
      const [, name] = /\/(GetPermission|ListDecisions)$/.exec(request.url()) ?? [];
      if (name !== undefined) reads.push(name);
    });
    const ended = Promise.withResolvers<void>();
    await page.route("**/WatchMany", (route) => ended.promise.then(() => route.continue()), { times: 1 });
    front.cut();
    await connect(service(), "deputy").permissions.rejectPermissions({ sessionId });
    ended.resolve();
    await page.locator(".ask-row").getByText("Rejected by deputy").first().waitFor();
    await untilQuiet(page);
    expect(new Set(reads)).toEqual(new Set(["GetPermission"]));
    expect(reads.length).toBeLessThanOrEqual(20);
  });
});
