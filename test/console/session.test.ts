import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { describe, expect, onTestFinished, test } from "vitest";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { WatchManyRequestSchema, WatchManyResponseSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { connect } from "../e2e/clients.ts";
import { startFront } from "../e2e/front.ts";
import { connectRunner } from "../runners/runner-program.ts";
import { useBrowsers } from "./browser.ts";
import { testedStores, useServiceOn } from "./stores.ts";

const browsers = useBrowsers();
const settings = `
[lsp.fake]
command = ${JSON.stringify(process.execPath)}
args = [${JSON.stringify(join(import.meta.dirname, "../e2e/language-server.ts"))}]
languages = { ".fake" = "fake" }
[permission]
"*" = "allow"
`;

describe.each(testedStores)("a session, on %s", (store) => {
  const service = useServiceOn(store, { settings });

  async function begin(input: { command: string }, waitMs = 30_000) {
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession({ title: "Work" });
    const call = { sessionId, callId: "c1", tool: "bash", input };
    await agent.tools.callTool({ ...call, waitMs });
    return { agent, call, path: `/sessions/${sessionId}/c1` };
  }

  test("is in the list, and its calls are in order of time with state and duration", async () => {
    const { agent, call } = await begin({ command: "sleep 0.2" });
    await agent.tools.callTool({ ...call, callId: "c2", tool: "read", input: { filePath: "missing.txt" } });
    const page = await browsers.open(service(), "watcher", { path: "/sessions" });
    await page
      .getByRole("link", { name: /^Work\b/ })
      .first()
      .click();
    const rows = page.getByRole("list", { name: "Calls, oldest first" }).getByRole("link");
    await expect.poll(() => rows.count()).toBe(2);
    await expect.poll(() => rows.first().innerText()).toMatch(/^bash\s*completed[\s\S]*sleep 0\.2[\s\S]*\d (ms|s)$/);
    await expect.poll(() => rows.last().innerText()).toMatch(/^read\s*failed/);
    await rows.last().click();
    await page.getByText("Nothing was changed.").waitFor();
  });

  test("is found by its title, however many sessions are newer", async () => {
    const agent = connect(service(), "caller");
    await agent.newSession({ title: "The needle" });
    for (let i = 0; i < 210; i += 1) await agent.newSession({ title: `Hay ${i}` });
    const page = await browsers.open(service(), "watcher", { path: "/sessions" });
    await page.getByRole("link", { name: /^Hay 209/ }).waitFor();
    await page.getByRole("searchbox", { name: "Filter by title, agent or id" }).fill("needle");
    await page.getByRole("link", { name: /^The needle/ }).waitFor();
  });

  test("places that a language server found are links, and each line unfolds to the lines around it", async () => {
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession({ title: "Places" });
    await writeFile(join(service().workspace, "a#1.fake"), "def <b>apple\none\n  apple\nthree\n");
    const input = { filePath: "a#1.fake", line: 3, column: 4 };
    await agent.tools.callTool({ sessionId, callId: "l1", tool: "lsp_find_references", input });
    const page = await browsers.open(service(), "watcher", { path: `/sessions/${sessionId}/l1` });
    const link = page.getByRole("link", { name: "a#1.fake:3:3" });
    expect(await link.getAttribute("href")).toBe(`vscode://file${service().workspace}/a%231.fake:3:3`);
    const place = page.getByRole("listitem").filter({ has: link });
    await place.getByText("apple", { exact: true }).click();
    await expect
      .poll(() => place.locator("pre").innerText())
      .toBe("  1  def <b>apple\n  2  one\n> 3    apple\n  4  three\n  5  ");
    await page.getByText("def <b>apple", { exact: true }).waitFor();
  });

  test("an approver stops the session behind one confirmation, and resumes it; a watcher does neither", async () => {
    const { agent, call, path } = await begin({ command: "echo once" });
    const watching = await browsers.open(service(), "watcher", { path });
    await watching.getByText("echo once").first().waitFor();
    expect(await watching.getByRole("button", { name: "Stop…" }).count()).toBe(0);
    const page = await browsers.open(service(), "approver");
    const asked = Promise.withResolvers<void>();
    await page.route("**/ListStops", (route) => asked.promise.then(() => route.continue()), { times: 1 });
    const listed = page.waitForEvent("requestfinished", (request) => request.url().endsWith("/ListStops"));
    await page.goto(`${service().url}/#${path}`);
    await page.getByRole("button", { name: "Stop…" }).click();
    asked.resolve();
    await listed;
    await page.getByRole("button", { name: "Stop this session and its descendants" }).click();
    await page.getByText("approver stopped this session and its descendants.").waitFor();
    const { part } = await agent.tools.callTool({ ...call, callId: "c2" });
    expect(part?.state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.DENIED } });
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByText("approver stopped").waitFor({ state: "detached" });
    expect((await agent.tools.callTool({ ...call, callId: "c3" })).part?.state.case).toBe("completed");
  });

  test("a call that ended in a gap of the events is shown as ended, also if it cannot be listed at first", async () => {
    const { call, path, agent } = await begin({ command: "until [ -e go-over ]; do sleep 0.05; done" }, 0);
    const front = await startFront([service().url]);
    const page = await browsers.open(front, "watcher", { path });
    const state = page.locator(".call .state-word");
    await state.getByText("running").waitFor();
    const ended = Promise.withResolvers<void>();
    await page.route("**/WatchMany", async (route) => {
      await ended.promise;
      const body = route.request().postDataBuffer() ?? Buffer.of();
      const { watches } = fromBinary(WatchManyRequestSchema, body.subarray(5));
      const ends = watches.map(({ key }) => {
        const frame = { case: "end" as const, value: { code: Code.OutOfRange } };
        return envelope(0, toBinary(WatchManyResponseSchema, create(WatchManyResponseSchema, { key, frame })));
      });
      const contentType = "application/connect+proto";
      await route.fulfill({ contentType, body: Buffer.concat([...ends, envelope(2, Buffer.from("{}"))]) });
    });
    front.cut();
    await writeFile(join(service().workspace, "go-over"), "");
    await agent.tools.callTool(call);
    // The list of ended calls fails once, while the stream goes on.
    await page.route("**/ListToolParts", (route) => route.abort(), { times: 1 });
    const gap = page.waitForResponse("**/WatchMany");
    ended.resolve();
    await gap;
    await page.unroute("**/WatchMany");
    await state.getByText("completed").waitFor();
  });

  test("a task links the session of its subagent", async () => {
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession({ title: "Parent" });
    const runner = await connectRunner(service());
    onTestFinished(runner.kill);
    const input = { description: "Look <b>around</b>", prompt: "Find it.", agent: "explore" };
    await agent.tools.callTool({ sessionId, callId: "t1", tool: "task", input, waitMs: 0 });
    const { childSession } = await runner.next("start");
    const page = await browsers.open(service(), "watcher", { path: `/sessions/${sessionId}/t1` });
    await page.getByRole("link", { name: "Open its session" }).click();
    await page.getByText("Look <b>around</b> (@explore subagent)").first().waitFor();
    expect(new URL(page.url()).hash).toBe(`#/sessions/${childSession}`);
  });

  test("live output appears in colour while the call runs, and continues after a break without a gap", async () => {
    const lines300 =
      "printf '\\033[32mline %s\\033[0m\\n' $i; sleep 0.004; [ $i != 200 ] || until [ -e go-on ]; do sleep 0.05; done";
    const command = `for i in $(seq 300); do ${lines300}; done`;
    const { call, path, agent } = await begin({ command }, 0);
    const front = await startFront([service().url]);
    const page = await browsers.open(front, "watcher", { path });
    const watches: string[] = [];
    page.on("request", (request) => {
      if (request.url().endsWith("/WatchMany")) watches.push(request.url());
    });
    const lines = page.locator(".output-line");
    await lines.locator(".fg-2").first().waitFor();
    const before = watches.length;
    front.cut();
    await expect.poll(() => watches.length).toBeGreaterThan(before);
    await writeFile(join(service().workspace, "go-on"), "");
    await agent.tools.callTool(call);
    await page.getByText("completed").first().waitFor();
    await lines.getByText("line 300", { exact: true }).waitFor();
    const search = page.getByRole("searchbox", { name: "Search the output" });
    await search.fill("line");
    await page.getByRole("status").getByText("1 of 300").waitFor();
    await search.fill("line 150");
    await page.getByRole("status").getByText("1 of 1", { exact: true }).waitFor();
    await page.locator('.output-line[data-hit="current"]').getByText("line 150").waitFor();
  });

  test("an output of 2 MB is paged: start, end and every line between can be loaded", async () => {
    const { path } = await begin({ command: "seq 1 300000" });
    const page = await browsers.open(service(), "approver", { path });
    const line = (text: string) => page.locator(".output-line").getByText(text, { exact: true });
    await line("1").waitFor();
    await page.getByRole("button", { name: "Go to end" }).click();
    await page.getByRole("button", { name: "Go to start" }).waitFor();
    await line("300000").waitFor();
    await page.getByRole("button", { name: "Go to start" }).click();
    await line("1").waitFor();
    await page.getByRole("button", { name: "Load more" }).click();
    // So many lines are more than a page holds, and the first ones are behind a button again.
    await page.getByRole("button", { name: "Go to start" }).waitFor();
    await page.getByText("256.0 KiB of").waitFor();
    await page.getByRole("button", { name: "Go to start" }).click();
    await line("1").waitFor();
  });

  test("an output that cannot be read at first is read with a press, and one of empty lines has them all", async () => {
    const { path } = await begin({ command: "head -c 262144 /dev/zero | tr '\\0' '\\n'" });
    const page = await browsers.open(service(), "approver");
    await page.route("**/ReadToolOutput", (route) => route.abort(), { times: 1 });
    await page.goto(`${service().url}/#${path}`);
    await page.getByRole("alert").getByText("The output could not be read").waitFor();
    await page.getByRole("alert").getByRole("button", { name: "Try again" }).click();
    await page.getByRole("heading", { name: "Output 256.0 KiB" }).waitFor();
    await page.locator('.output .virtual-row[aria-setsize="262144"]').first().waitFor();
    expect(await page.getByRole("alert").count()).toBe(0);
  });

  test("a jump that is asked for while more of an output is loading is taken afterwards", async () => {
    const { path } = await begin({ command: "seq 1 300000" });
    const page = await browsers.open(service(), "approver", { path });
    const line = (text: string) => page.locator(".output-line").getByText(text, { exact: true });
    await line("1").waitFor();
    const held = Promise.withResolvers<void>();
    await page.route("**/ReadToolOutput", async (route) => {
      await held.promise;
      await route.continue();
    });
    const loading = page.waitForRequest("**/ReadToolOutput");
    await page.getByRole("button", { name: "Load more" }).click();
    await loading;
    await page.getByRole("button", { name: "Go to end" }).click();
    held.resolve();
    await line("300000").waitFor();
  });

  test("a picture that a tool returned is shown from the page's memory", async () => {
    const agent = connect(service(), "caller");
    const sessionId = await agent.newSession();
    await writeFile(join(service().workspace, "red.png"), redPixel);
    await agent.tools.callTool({ sessionId, callId: "c1", tool: "read", input: { filePath: "red.png" } });
    const page = await browsers.open(service(), "watcher", { path: `/sessions/${sessionId}/c1` });
    const picture = page.getByRole("img", { name: "red.png" });
    await picture.waitFor();
    await expect.poll(() => picture.evaluate((image) => ("naturalWidth" in image ? image.naturalWidth : 0))).toBe(1);
    expect(await picture.getAttribute("src")).toMatch(/^(data|blob):/);
  });

  test("the caller can cancel a call; a watcher has no button for it", async () => {
    const { path } = await begin({ command: "sleep 60" }, 0);
    const watching = await browsers.open(service(), "watcher", { path });
    await watching.getByText("running").first().waitFor();
    expect(await watching.getByRole("button", { name: "Cancel this call" }).count()).toBe(0);
    const own = await browsers.open(service(), "caller", { path });
    await own.getByRole("button", { name: "Cancel this call" }).click();
    await own.getByText("cancelled").first().waitFor();
    await watching.getByText("cancelled").first().waitFor();
  });

  test("a stranger's session is not shown", async () => {
    const { path } = await begin({ command: "true" });
    const page = await browsers.open(service(), "stranger", { path });
    await page.getByText("This session cannot be shown").waitFor();
  });
});

/** A message of a stream as Connect sends it. */
const envelope = (flags: number, message: Uint8Array) =>
  Buffer.concat([Buffer.of(flags, 0, 0, message.length >> 8, message.length & 255), message]);

/** A PNG of one red pixel. */
const redPixel = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==",
  "base64",
);
