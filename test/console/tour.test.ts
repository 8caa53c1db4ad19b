import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { Page } from "playwright-core";
import { expect, test, vi } from "vitest";
import { type Clients, connect } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { answer, untilArmed, useBrowsers } from "./browser.ts";

/** Walks through docs/tour.md; `npm run tour` also takes its pictures. */
const browsers = useBrowsers();
const root = resolve(import.meta.dirname, "../..");
const policy = `
[permission.bash]
"*" = "ask"
"git status *" = "allow"
"npm run build *" = "allow"
`;

test("the tour: look, approve, reject, remember, follow", async () => {
  const service = await startService({ settings: policy });
  await prepare(service.workspace);
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession({ title: "Fix the flaky login test" });
  const update = await agent.newSession({ title: "Weekly dependency update" });
  await agent.tools.callTool({ sessionId, callId: "c1", tool: "read", input: { filePath: "src/login.ts" } });
  const asked = await askAll(agent, sessionId, update);

  const page = await browsers.open(service, "approver", { viewport: { width: 1200, height: 720 } });
  await page.getByText(`${asked.length} waiting for an answer`).waitFor({ state: "attached" });
  await untilArmed(page);
  await picture(page, "command");

  await page.keyboard.press("j");
  await page.getByRole("heading", { name: "Change to src/login.ts" }).waitFor();
  await untilArmed(page);
  await picture(page, "change");
  await answer(page, /Approve once/);

  await page.getByRole("link", { name: "src/login.ts" }).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "npm test" }).click();
  await page.getByRole("article").getByText("Run the login tests").first().waitFor();
  await untilArmed(page);
  // A card that a notice draws again takes no key for a moment.
  await vi.waitFor(async () => {
    await page.keyboard.press("a");
    await page.getByText("From now on, allow").waitFor({ timeout: 5_000 });
  });
  await picture(page, "always");
  await page.getByLabel("agent build").check();
  await answer(page, "Approve and remember");

  const build = agent.tools.callTool({ sessionId, callId: "build", tool: "bash", input: { command: "npm run build" } });
  const session = await browsers.open(service, "approver", {
    path: `/sessions/${sessionId}/build`,
    viewport: { width: 1200, height: 720 },
    colorScheme: "dark",
  });
  await session.locator(".output-line").getByText("module 12", { exact: false }).first().waitFor();
  await picture(session, "session");
  expect((await build).part?.state.case).toBe("completed");

  const phone = await browsers.open(service, "deputy", {
    viewport: { width: 375, height: 700 },
    hasTouch: true,
    isMobile: true,
    colorScheme: "dark",
  });
  await phone.getByRole("link", { name: "rm -rf node_modules" }).tap();
  await untilArmed(phone);
  await picture(phone, "phone");
  await phone.getByRole("button", { name: "Reject" }).tap();
  await phone.getByLabel(/What should it do instead/).fill("Use npm ci; it removes them itself.");
  await phone.getByRole("button", { name: "Reject" }).tap();
  const rejected = await agent.tools.callTool({ sessionId: update, callId: "c1", tool: "bash", input: reinstall });
  expect(rejected.part?.state.value).toMatchObject({
    error: expect.stringContaining("Use npm ci; it removes them itself."),
  });

  const why = await browsers.open(service, "approver", {
    path: "/policy/explain",
    viewport: { width: 1200, height: 960 },
  });
  await why.getByRole("textbox", { name: "Command" }).fill("git status && npm run build -- --watch && rm -rf dist");
  await why.getByRole("button", { name: "Explain" }).click();
  await why.getByText("Only if someone approves it.").waitFor();
  await picture(why, "explain");
});

test("the tour shows all of its pictures", async () => {
  const tour = await readFile(join(root, "docs/tour.md"), "utf8");
  const shown = [...tour.matchAll(/\]\(images\/([\w-]+)\.png\)/g)].map(([, name]) => name);
  expect(shown.toSorted()).toEqual(["always", "change", "command", "explain", "phone", "session"]);
  for (const name of shown)
    expect((await readFile(join(root, `docs/images/${name}.png`))).length).toBeLessThan(150_000);
});

const reinstall = { command: "rm -rf node_modules && npm install", description: "Start afresh" };

/** Makes the calls that wait at the start, one after the other, so that their order is fixed. */
async function askAll(agent: Clients, sessionId: string, update: string): Promise<unknown[]> {
  const calls = [
    {
      sessionId,
      callId: "c2",
      tool: "bash",
      input: { command: "git status && npm test -- login | tail -n 20", description: "Run the login tests" },
    },
    {
      sessionId,
      callId: "c3",
      tool: "edit",
      input: {
        filePath: "src/login.ts",
        oldString: "  await sleep(100);\n  return session.isOpen;",
        newString: "  // Wait for the event instead of guessing a delay.\n  await session.opened;\n  return true;",
      },
    },
    { sessionId: update, callId: "c1", tool: "bash", input: reinstall },
    {
      sessionId: update,
      callId: "c2",
      tool: "webfetch",
      input: { url: "https://docs.example.com/changelog", format: "markdown" },
    },
  ];
  for (const call of calls) await agent.tools.callTool({ ...call, waitMs: 0 }).then(() => untilAsked(agent, call));
  return calls;
}

async function untilAsked(agent: Clients, call: { sessionId: string; callId: string }): Promise<void> {
  await expect.poll(async () => (await agent.tools.getToolPart(call)).permissions.length).toBeGreaterThan(0);
}

/** Creates a small project whose build prints colours. */
async function prepare(workspace: string): Promise<void> {
  const login =
    "export async function login(user: User) {\n  const session = open(user);\n  await sleep(100);\n  return session.isOpen;\n}\n";
  await mkdir(join(workspace, "src"));
  await writeFile(join(workspace, "src/login.ts"), login);
  await writeFile(join(workspace, "build.mjs"), colourfulBuild);
  await writeFile(join(workspace, "package.json"), JSON.stringify({ scripts: { build: "node build.mjs" } }));
}

const colourfulBuild = `
const line = (text) => new Promise((go) => setTimeout(() => go(console.log(text)), 100));
for (let i = 1; i <= 24; i += 1) await line("\\x1b[32m✓\\x1b[0m module " + i + " \\x1b[2m" + 7 * i + " ms\\x1b[0m");
await line("\\x1b[33mwarning\\x1b[0m 2 modules are larger than 500 kB");
`;

/** Takes a screenshot; `npm run tour` stores it. */
async function picture(page: Page, name: string): Promise<void> {
  const target = process.env.TOUR === undefined ? {} : { path: join(root, `docs/images/${name}.png`) };
  await page.screenshot({ animations: "disabled", ...target });
}
