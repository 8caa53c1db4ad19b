import { expect, onTestFinished, test } from "vitest";
import { connectWorker, echoTool, type RawHello } from "../bodies/workers/raw-worker.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { passTime, useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";

const browsers = useBrowsers();
const service = useService({
  settings: `
[permission]
"ci_*" = "allow"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["ci_*"]
value = "ci-worker-token-for-tests"
`,
});

async function workerFor(hello: RawHello) {
  const worker = await connectWorker(service, hello);
  onTestFinished(worker.cut);
  return worker;
}

test("the page says how to start a first worker, then shows its fleet by itself: builds, runs, what waits and is refused", async () => {
  const page = await browsers.open(service, "watcher", { path: "/workers" });
  await page.getByText("No workers yet").waitFor();
  await page.getByText("toolgate token create --role worker --tool NAME").waitFor();
  expect(await findings(page)).toEqual([]);

  const tools = [echoTool("ci_deploy"), echoTool("bash")];
  const build = { buildId: "build-7", generation: 7n, sdk: "toolgate-go 1.0" };
  const first = await workerFor({ worker: "deployers", tools, capacity: 1, resumeMs: 600_000, ...build });
  const second = await workerFor({ worker: "deployers", tools, buildId: "build-6" });
  second.send({ case: "capacity", value: { capacity: 4, draining: true } });
  const card = page.getByRole("listitem").filter({ hasText: "deployers" });
  const shows = async (text: RegExp) => {
    await expect
      .poll(async () => {
        await passTime(page, 3_000);
        return await card.first().innerText();
      })
      .toMatch(text);
  };
  await shows(/1 connected, 1 draining, runs 0 of 5/);
  await shows(/bash is not offered: the token may not bring the tool "bash"/);
  await shows(/build-7\s+generation 7\s+seen just now\s+toolgate-go 1\.0 · workspaces default · replica \w{8} · wrk_/);

  const { tools: agent, newSession } = connect(service, "caller");
  const sessionId = await newSession();
  const call = (callId: string) =>
    agent.callTool({ sessionId, callId, tool: "ci_deploy", input: { text: callId }, waitMs: 0 });
  await call("runs");
  await first.next("start");
  await call("waits");
  await shows(/runs 1 of 5, 1 call waits/);
  expect(await sticksOut(page)).toBeLessThanOrEqual(0);
  expect(await findings(page)).toEqual([]);
  first.cut();
  await shows(/1 draining, 1 away, runs 0 of 4, 1 call waits/);

  const phone = await browsers.open(service, "approver", { path: "/workers", viewport: { width: 360, height: 740 } });
  await phone.getByText("build-7").waitFor();
  expect(await sticksOut(phone)).toBeLessThanOrEqual(0);
  expect(await findings(phone)).toEqual([]);
});
