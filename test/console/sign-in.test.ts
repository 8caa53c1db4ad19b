import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { clientOf } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { programEntry } from "../main.ts";
import { startRogueIssuer } from "../people/rogue-issuer.ts";
import { untilLive, useBrowsers } from "./browser.ts";

const browsers = useBrowsers();

/** Starts the service with generated tokens; resolves to the line of its banner that names the console. */
async function consoleLine({ atTerminal }: { atTerminal: boolean }) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-link-"));
  await mkdir(join(folder, "workspace"));
  const data = join(folder, "data");
  const flags = ["--listen", "127.0.0.1:0", "--workspace", join(folder, "workspace"), "--data", data];
  const command = [process.execPath, programEntry(), "serve", ...flags];
  const [program = "", ...args] = atTerminal ? ["script", "-qefc", command.join(" "), "/dev/null"] : command;
  const child = spawn(program, args, {
    cwd: join(import.meta.dirname, "../.."),
    env: { PATH: process.env.PATH, HOME: folder },
    stdio: ["pipe", "pipe", "pipe"],
  });
  onTestFinished(async () => {
    // Ending `script` would only hang up the terminal, and a hang-up does not stop the service.
    if (atTerminal) child.stdin.write("\u0003");
    else child.kill();
    await once(child, "exit");
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  const line = await new Promise<string>((resolve) => {
    let heard = "";
    const hear = (text: Buffer) => {
      heard += text;
      const found = /^ +console +(.+?)\r?\n/m.exec(heard)?.[1];
      if (found !== undefined) resolve(found);
    };
    child.stdout.on("data", hear);
    child.stderr.on("data", hear);
  });
  return line;
}

test("a person signs in at an identity provider in the browser, and is back at the request that it was opened for", async () => {
  const provider = await startRogueIssuer("toolgate");
  onTestFinished(() => void provider.close());
  const settings =
    `[oidc.corp]\nissuer = "${provider.issuer}"\nclient_id = "toolgate"\n` +
    '[[role_map]]\nissuer = "corp"\ngroup = "sre"\nroles = ["approver"]\n';
  const { url } = await startService({ settings });
  const page = await (await browsers.browser()).newPage();
  // A link can be passed on with more than it had.
  await page.goto(`${url}/r/per_1?return=https://evil.example#/policy`);
  await page.getByRole("button", { name: "Sign in at corp" }).click();
  await untilLive(page);
  await page.getByText("Ann A.", { exact: true }).waitFor();
  expect(new URL(page.url())).toMatchObject({ pathname: "/", search: "", hash: "#/requests/per_1" });
  await page.getByRole("button", { name: "Sign out" }).click();
  // A link that was damaged on its way leads to the same page.
  await page.goto(`${url}/healthz`);
  await page.goto(`${url}/#code=%E0%A4%A`);
  await page.getByRole("alert").waitFor();
  await page.getByRole("button", { name: "Sign in at corp" }).waitFor();
  // A response that another page obtained is not taken.
  await page.goto(`${url}/auth/callback/corp?code=of-ann&state=x&iss=${provider.issuer}`);
  await page.getByRole("alert").getByText("begin it again").waitFor();
});

test("the link that the service prints on a terminal signs in as approver, once", async () => {
  const line = await consoleLine({ atTerminal: true });
  expect(line).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/#code=(\w{4}-){3}\w{4}$/);
  const [, code = ""] = line.split("#code=");
  const browser = await browsers.browser();
  const page = await browser.newPage();
  await page.goto(line);
  await untilLive(page);
  expect(page.url()).not.toContain(code);
  await page.getByText("approver", { exact: true }).first().waitFor();
  await page.reload();
  await untilLive(page);

  const other = await (await browsers.browser()).newPage();
  await other.goto(line);
  await other.getByText("the code is unknown, used or older than 10 minutes").waitFor();
});

test("no script of the page can read the cookie", async () => {
  const page = await (await browsers.browser()).newPage();
  await page.goto(await consoleLine({ atTerminal: true }));
  await untilLive(page);
  expect(await page.evaluate("document.cookie")).toBe("");
  const [cookie] = await page.context().cookies();
  expect(cookie).toMatchObject({ httpOnly: true, sameSite: "Strict", path: "/" });
});

test("a signed-in browser shows a code that signs another one in, and signing out revokes its own sign-in", async () => {
  const page = await (await browsers.browser()).newPage();
  await page.goto(await consoleLine({ atTerminal: true }));
  await untilLive(page);
  await page.getByRole("button", { name: "Add a device" }).click();
  const code = (await page.locator(".add-device code").first().textContent()) ?? "";
  // The address of this page means the phone itself there.
  await page.locator(".add-device").getByText("reaches this machine only").waitFor();
  expect(await page.locator(".add-device").innerText()).not.toContain("#code=");
  const phone = await (await browsers.browser()).newPage();
  await phone.goto(new URL(page.url()).origin);
  await phone.getByLabel("Code or token").fill(code);
  await phone.getByRole("button", { name: "Sign in" }).click();
  await untilLive(phone);

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Code or token").waitFor();
  await page.reload();
  await page.getByLabel("Code or token").waitFor();
  await phone.reload();
  await untilLive(phone);
});

test("signing out ends all tabs of the browser, and says so if the service does not end the sign-in", async () => {
  const service = await startService();
  const credentials = clientOf(CredentialService, service.url, "admin-token-for-tests");
  const { code } = await credentials.createCode({ newPerson: "Ann" });
  const browser = await browsers.browser();
  const [page, other] = [await browser.newPage(), await browser.newPage()];
  await page.goto(`${service.url}/#code=${code}`);
  await untilLive(page);
  await other.goto(service.url);
  await untilLive(other);
  await page.route("**/console/sign-out", (route) => route.fulfill({ status: 503 }));
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("alert").getByText("The service did not end this sign-in (503").waitFor();
  await other.getByLabel("Code or token").waitFor();
});

test("without a terminal the output has no link that signs in", async () => {
  const line = await consoleLine({ atTerminal: false });
  expect(line).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/$/);
});

test("a service without authentication asks for no token", async () => {
  const service = await startService({ flags: ["--insecure-no-auth"] });
  const page = await (await browsers.browser()).newPage();
  await page.goto(service.url);
  await untilLive(page);
  await page.getByText("anonymous").waitFor();
});
