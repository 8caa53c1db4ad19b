import { expect, onTestFinished, test } from "vitest";
import { connect as connectAgent } from "../../src/client/connect.ts";
import { useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";
import { approveByPhone } from "./phone-approval.ts";

const browsers = useBrowsers();

test("a push and two taps let a call continue on a phone, with a kill -9 between any two steps, and a page shows the notices", async () => {
  const ntfy = (name: string, url: string) => `[channel.${name}]\nkind = "ntfy"\nurl = "${url}"\nto = "t"\n`;
  const command = "echo continued";
  const { service, end } = await approveByPhone(browsers, {
    settings: (url) => ntfy("away", "http://127.0.0.1:1/") + ntfy("works", `${url}/ntfy`),
    command,
    run({ url }) {
      const agent = connectAgent({ url, token: "caller-token-for-tests" });
      onTestFinished(() => agent.close());
      return agent.call("bash", { command });
    },
  });
  expect(end.output).toContain("continued");

  const admin = await browsers.open(service, "admin", { path: "/notices", viewport: { width: 360, height: 740 } });
  const channel = (name: string) => admin.getByRole("listitem").filter({ has: admin.getByText(name, { exact: true }) });
  const asked = admin.getByRole("list", { name: "Last notices" }).getByRole("link", { name: "build asks: bash" });
  // An outcome that was sent before the last kill, and not recorded, is sent again after its lease.
  const ofPhone = async () => {
    await admin.reload();
    await asked.waitFor();
    return channel("phone").last().innerText();
  };
  await expect.poll(ofPhone, { timeout: 60_000, interval: 1_000 }).toMatch(/^phone\s+ended\s+\d{4}-.*to prs_/s);
  const testOf = async (name: string) => {
    await channel(name).getByRole("button", { name: "Send a test notice" }).click();
    return channel(name).getByRole("status");
  };
  await (await testOf("away")).getByText("Not accepted: ECONNREFUSED. Next: check that it runs").waitFor();
  await channel("away").getByText("failing").waitFor();
  await (await testOf("works")).getByText("Accepted: it answered 201").waitFor();
  await channel("works").getByText("working").waitFor();
  expect(await sticksOut(admin)).toBeLessThanOrEqual(0);
  expect(await findings(admin)).toEqual([]);
  const approver = await browsers.open(service, "approver", { viewport: { width: 360, height: 740 } });
  await approver.getByRole("button", { name: "You" }).click();
  await approver.getByRole("link", { name: "Notices" }).click();
  await approver.getByRole("link", { name: "build asks: bash" }).waitFor();
  expect(await approver.getByRole("button", { name: "Send a test notice" }).count()).toBe(0);
});
