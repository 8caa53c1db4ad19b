import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { startService } from "../e2e/service.ts";
import { untilLive, useBrowsers } from "./browser.ts";

const browsers = useBrowsers();

/** Starts the service with generated tokens; resolves to the line of its banner that names the console. */
async function consoleLine({ atTerminal }: { atTerminal: boolean }) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-link-"));
  await mkdir(join(folder, "workspace"));
  const data = join(folder, "data");
  const flags = ["--listen", "127.0.0.1:0", "--workspace", join(folder, "workspace"), "--data", data];
  const command = [process.execPath, "src/main.ts", "serve", ...flags];
  const [program = "", ...args] = atTerminal ? ["script", "-qefc", command.join(" "), "/dev/null"] : command;
  const child = spawn(program, args, {
    cwd: join(import.meta.dirname, "../.."),
    env: { PATH: process.env.PATH, HOME: folder },
    stdio: ["ignore", "pipe", "pipe"],
  });
  onTestFinished(async () => {
    child.kill();
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
  return { line, token: (await readFile(join(data, "tokens", "approver"), "utf8")).trim() };
}

test("the link that the service prints on a terminal signs in as approver", async () => {
  const { line, token } = await consoleLine({ atTerminal: true });
  expect(line).toMatch(new RegExp(`^http://127\\.0\\.0\\.1:\\d+/#token=${token}$`));
  const page = await (await browsers.browser()).newPage();
  await page.goto(line);
  await untilLive(page);
  expect(page.url()).not.toContain(token);
  await page.getByText("approver").first().waitFor();
});

test("a log gets the path of the token file, not the token", async () => {
  const { line, token } = await consoleLine({ atTerminal: false });
  expect(line).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/ {2}\(sign in with the token in .*tokens\/approver\)$/);
  expect(line).not.toContain(token);
});

test("a service without authentication asks for no token", async () => {
  const service = await startService({ flags: ["--insecure-no-auth"] });
  const page = await (await browsers.browser()).newPage();
  await page.goto(service.url);
  await untilLive(page);
  await page.getByText("anonymous").waitFor();
});
