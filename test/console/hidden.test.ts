import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "vitest";
import { useService } from "../e2e/service.ts";
import { ask } from "./ask.ts";
import { answer, untilLive, useBrowsers } from "./browser.ts";

const browsers = useBrowsers();
const service = useService({ settings: '[permission.read]\n"secrets/*" = "deny"\n' });

test("an ask for a command says what the command will not see, and how often it was repeated", async () => {
  await mkdir(join(service.workspace, "secrets"));
  for (const name of [".env", "secrets/key"]) await writeFile(join(service.workspace, name), "TOKEN=x\n");
  const page = await browsers.open(service, "approver");
  await untilLive(page);
  const call = await ask(service, { command: "ls -a" });
  await page.getByRole("article").getByText("The command cannot read: secrets/, .env").waitFor();
  await answer(page, /Approve once/);
  await call.end();
  // A call that repeats it says so.
  for (const callId of ["c2", "c3"]) {
    await call.agent.tools.callTool({ ...call.call, callId, waitMs: 0 });
    if (callId === "c3") await page.getByText("the same call, 3 times in a row").waitFor();
    await answer(page, /Approve once/);
    await call.agent.tools.callTool({ ...call.call, callId });
  }
});
