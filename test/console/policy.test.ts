import type { BrowserContextOptions } from "playwright-core";
import { describe, expect, test } from "vitest";
import { PermissionAction as Action } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";
import { useServiceOn } from "./stores.ts";

const settings = `
[permission.bash]
"ls *" = "allow"
"git push *" = "deny"
`;
const browsers = useBrowsers();

describe("the policy pages", () => {
  const service = useServiceOn("SQLite", { settings });
  const write = (filePath: string) => ({ tool: "write", input: { filePath, content: "x\n" } });

  /** Makes a call that asks and answers it; returns its session. */
  async function asked(filePath: string, reply: PermissionReply, title: string): Promise<string> {
    const [agent, person] = [connect(service(), "caller"), connect(service(), "approver")];
    const sessionId = await agent.newSession({ title });
    const call = read(agent.tools.executeTool({ sessionId, callId: "c1", ...write(filePath) }));
    const { id: permissionId } = await call.until("permissionAsked");
    await person.permissions.respondToPermission({ sessionId, permissionId, reply });
    await call.end();
    return sessionId;
  }

  test("rules are shown list by list for an agent and for the selected session", async () => {
    const rules = [{ permission: "edit", pattern: "secret/*", action: Action.DENY }];
    await connect(service(), "caller").newSession({ title: "Tidy up", agent: "plan", rules });
    const page = await browsers.open(service(), "approver", { path: "/policy" });
    const configured = page.getByRole("table", { name: "The configuration" });
    await configured.waitFor();
    await expect
      .poll(() => configured.getByRole("row").allInnerTexts())
      .toEqual(["#\tPermission\tPattern\tAction", "0\tbash\tls *\tallow", "1\tbash\tgit push *\tdeny"]);
    await page.getByLabel("Workspace or session").selectOption({ label: "Tidy up (plan)" });
    const own = page.getByRole("table", { name: /^The session’s own rules/ });
    await own.getByRole("cell", { name: "secret/*" }).waitFor();
    await page.getByRole("table", { name: "The agent’s limits (plan)" }).waitFor();
    await page.getByLabel("Show only").fill("push");
    await own.waitFor({ state: "detached" });
    await configured.getByRole("cell", { name: "git push *" }).waitFor();
  });

  test("a new grant appears without reload and is revoked in two steps; the next call asks again", async () => {
    const page = await browsers.open(service(), "approver", { path: "/policy/grants" });
    await page.getByText("No grants").waitFor();
    const sessionId = await asked("a.txt", PermissionReply.ALWAYS, "Granted");
    const card = page.getByRole("listitem").filter({ hasText: "exactly a.txt" });
    await card.getByText("the session it was asked in, and its children").waitFor();
    await card.getByText("by approver").waitFor();
    await card.getByText(/^toolgate grants revoke grt_/).waitFor();
    await card.getByRole("button", { name: "Revoke" }).press("Enter");
    await page.keyboard.press("Enter");
    await card.waitFor({ state: "detached" });
    const call = { sessionId, callId: "c2", ...write("a.txt") };
    await read(connect(service(), "caller").tools.executeTool(call)).until("permissionAsked");
    await page.getByLabel("Show revoked, expired and used up grants").check();
    await card.getByText(/^revoked /).waitFor();
    expect(await card.getByRole("button", { name: "Revoke" }).count()).toBe(0);
  });

  test("a command line is explained command by command, with the deciding rule", async () => {
    const page = await browsers.open(service(), "approver", { path: "/policy/explain" });
    await page.getByRole("textbox", { name: "Command" }).fill("ls -l && git push origin main");
    await page.getByRole("button", { name: "Explain" }).click();
    const verdict = page.getByRole("status", { name: "What would happen" });
    await verdict.getByText("No. It is denied without asking.").waitFor();
    const pieces = verdict.getByRole("list").first().getByRole("listitem");
    await pieces.filter({ hasText: "ls -l" }).getByText("The configuration says bash “ls *” = allow.").waitFor();
    await pieces.filter({ hasText: "git push origin main" }).getByText("bash “git push *” = deny").waitFor();
    await page.getByText(`toolgate plan bash '{"command":"ls -l && git push origin main"}'`).waitFor();
    await page.getByText("Try one more rule").click();
    await page.getByLabel("Rule’s pattern").fill("git push origin main");
    await page.getByRole("button", { name: "Explain" }).click();
    await verdict.getByText("Yes. It runs without asking.").waitFor();
    await page.getByText("--rule 'bash git push origin main allow'").waitFor();
  });

  test("an explanation goes when the agent changes, and a later question has the last word", async () => {
    const page = await browsers.open(service(), "approver", { path: "/policy/explain" });
    await page.getByLabel("have a permission").check();
    const patterns = page.getByLabel("Patterns, one per line");
    const explain = page.getByRole("button", { name: "Explain" });
    const verdict = page.getByRole("status", { name: "Decision of the rules" });
    await page.getByLabel("Permission", { exact: true }).fill("bash");
    const first = Promise.withResolvers<void>();
    await page.route("**/ExplainPermission", (route) => first.promise.then(() => route.continue()), { times: 1 });
    const answered = page.waitForEvent("requestfinished", (request) => /ExplainPermission$/.test(request.url()));
    await patterns.fill("ls now");
    await explain.click();
    await patterns.fill("git push now");
    await explain.click();
    await verdict.getByText("No. It is denied without asking.").waitFor();
    await answered;
    const late = page.waitForEvent("requestfinished", (request) => /ExplainPermission$/.test(request.url()));
    first.resolve();
    await late;
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))");
    await page.getByText("toolgate explain bash 'git push now'").waitFor();
    await page.getByLabel("Agent").selectOption("plan");
    await expect.poll(() => verdict.innerText()).toBe("");
  });

  test("a call and a permission are explained for the selected agent", async () => {
    const page = await browsers.open(service(), "approver", { path: "/policy/explain" });
    await page.getByLabel("Agent").selectOption("plan");
    await page.getByLabel("call a tool").check();
    await page.getByRole("combobox", { name: "Tool", exact: true }).selectOption("read");
    await page.getByRole("textbox", { name: "filePath" }).fill(".env");
    await page.getByRole("button", { name: "Explain" }).click();
    await page.getByText("The built-in policy says read “*.env” = ask.").waitFor();
    await page.getByLabel("have a permission").check();
    await page.getByLabel("Patterns, one per line").fill("src/main.ts");
    await page.getByRole("button", { name: "Explain" }).click();
    await page.getByText("No. It is denied without asking.").waitFor();
    await page.getByText("toolgate explain edit src/main.ts --agent plan").waitFor();
  });

  test("decisions are shown newest first with the state of their chain, and can be filtered", async () => {
    const sessionId = await asked("b.txt", PermissionReply.ONCE, "Decided");
    const call = { sessionId, tool: "bash", input: { command: "git push" } };
    await connect(service(), "caller").tools.callTool(call);
    const page = await browsers.open(service(), "watcher", { path: `/policy/decisions/${sessionId}` });
    await page.getByText("The hash chain is intact up to record 4").waitFor();
    const headlines = page.locator(".card-head b");
    await expect
      .poll(() => headlines.allInnerTexts())
      .toEqual(["Denied by a rule", "Ran", "Approved once by approver", "Asked"]);
    await page.getByLabel("Tool").selectOption("bash");
    await expect.poll(() => headlines.allInnerTexts()).toEqual(["Denied by a rule"]);
    await page.getByLabel("Tool").selectOption("");
    await page.getByLabel("Outcome").selectOption("approved");
    await expect.poll(() => headlines.allInnerTexts()).toEqual(["Approved once by approver"]);
    await page.getByLabel("Principal").selectOption("caller");
    await page.getByText("1 of 4 decisions, newest first").waitFor();
  });

  test("rules of a file are tried on what was decided: first what was denied or rejected and would be allowed", async () => {
    const sessionId = await asked("rejected.txt", PermissionReply.REJECT, "Rejected");
    const call = { sessionId, tool: "bash", input: { command: "git push origin" } };
    await connect(service(), "caller").tools.callTool(call);
    await connect(service(), "caller").tools.callTool({ ...call, input: { command: "ls src" } });
    const page = await browsers.open(service(), "approver", { path: "/policy" });
    await page.getByRole("link", { name: "Try other rules" }).click();
    const text = page.getByRole("textbox", { name: "Its text" });
    const outcome = page.getByRole("status", { name: "What would change" });

    await text.fill('data_dir = "x"\n');
    await page.getByRole("button", { name: "Try" }).click();
    await page.getByText("The file has no rules").waitFor();
    await text.fill('data_dir = "x"\n[permission.bash]\n"git push *" = "perhaps"\n');
    await text.press("Control+Enter");
    await page.getByText("line 3: permission.bash.git push *: must be").waitFor();

    await page.getByLabel("Configuration file").setInputFiles({
      name: "next.toml",
      mimeType: "application/toml",
      buffer: Buffer.from(`[[token]]\nid = "ci"\n${settings.replaceAll('"deny"', '"allow"').replace("ls", "ls -l")}
[permission.edit]\n"rejected*" = "allow"\n`),
    });
    await expect.poll(() => text.inputValue()).toContain("rejected*");
    const sent = page.waitForRequest(/\/SimulatePolicy$/);
    await text.press("Control+Enter");
    expect((await sent).postDataBuffer()?.toString()).not.toContain('"ci"');
    await outcome.getByText(/^\d+ decisions would be allowed that the rules denied or people rejected/).waitFor();
    await outcome.getByText(/^By the rules in force \d+ decisions come out as recorded: 0 changes/).waitFor();
    expect(await page.getByRole("heading", { level: 2 }).allInnerTexts()).toEqual([
      "Denied or rejected, and would be allowed",
      "Other changes",
    ]);
    const cards = page.locator("main .card");
    await cards.filter({ hasText: "ask → allow edit" }).filter({ hasText: "people rejected 1 of them" }).waitFor();
    await cards.filter({ hasText: "deny → allow bash" }).filter({ hasText: "git push origin" }).waitFor();
    await cards.last().filter({ hasText: "allow → ask bash" }).filter({ hasText: "ls src" }).waitFor();

    await text.fill(settings);
    await page.getByRole("combobox", { name: "Agent" }).selectOption("build");
    await page.getByRole("button", { name: "Try" }).click();
    await outcome.getByText("No decision would change.").waitFor();
    expect(await cards.count()).toBe(0);

    await page.route(/\/SimulatePolicy$/, () => {});
    await page.getByRole("button", { name: "Try" }).click();
    const canceled = page.waitForEvent("requestfailed");
    await page.getByRole("button", { name: "Cancel" }).click();
    expect((await canceled).url()).toMatch(/\/SimulatePolicy$/);
    await expect.poll(() => outcome.innerText()).toBe("");
  });

  test("a token that cannot list rules and grants gets an explanation, and can still use Explain", async () => {
    const page = await browsers.open(service(), "caller", { path: "/policy/rules" });
    await page.getByRole("heading", { name: "This token cannot list rules" }).waitFor();
    await page.getByRole("link", { name: "Explain" }).click();
    await page.getByRole("textbox", { name: "Command" }).fill("ls");
    await page.getByRole("textbox", { name: "Command" }).press("Control+Enter");
    await page.getByText("Yes. It runs without asking.").waitFor();
  });

  const looks: readonly BrowserContextOptions[] = [
    { colorScheme: "light" },
    { colorScheme: "dark", viewport: { width: 375, height: 700 } },
  ];

  test.each(["rules", "try", "grants", "explain", "decisions"])(
    "%s: nothing serious for axe, nothing sticks out",
    async (part) => {
      const sessionId = await asked(`${part}.txt`, PermissionReply.ALWAYS, `For ${part} `.repeat(20));
      for (const look of looks) {
        const place = part === "decisions" ? `/policy/decisions/${sessionId}` : `/policy/${part}`;
        const page = await browsers.open(service(), "approver", { path: place, ...look });
        if (part === "explain") {
          await page
            .getByRole("textbox", { name: "Command" })
            .fill(`git push ${"x".repeat(200)}; cat ${"y".repeat(200)}`);
          await page.getByRole("button", { name: "Explain" }).click();
        }
        if (part === "try") {
          await page.getByRole("textbox", { name: "Its text" }).fill('[permission]\n"*" = "deny"\n');
          await page.getByRole("button", { name: "Try" }).click();
        }
        await page.locator("main :is(table, .card, .answer)").first().waitFor();
        expect(await findings(page)).toEqual([]);
        expect(await sticksOut(page)).toBe(0);
      }
    },
  );
});
