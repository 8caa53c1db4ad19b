import { encode } from "uqr";
import { expect, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { clientOf } from "../e2e/clients.ts";
import { startService, useService } from "../e2e/service.ts";
import { ask } from "./ask.ts";
import { answer, farewellOf, untilLive, useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";

const browsers = useBrowsers();
const service = useService({
  settings:
    'public_url = "https://gate.example"\n' +
    '[[approval]]\npermission = "bash"\napprove = 2\nreason = "required"\nshown = true\n',
});
const admin = "admin-token-for-tests";

async function join(newPerson: string, { url } = service): Promise<string> {
  const { code } = await clientOf(CredentialService, url, admin).createCode({ newPerson });
  return (await clientOf(CredentialService, url).signIn({ code, label: "laptop" })).token;
}

test("an admin sees persons with their devices, invites one, and revokes a device or a person with a second press", async () => {
  await join("Ann");
  await join("Bob");
  const page = await browsers.open(service, "admin", { path: "/people" });
  const ann = page.getByRole("listitem").filter({ hasText: "local:ann-" });
  await ann.getByText("laptop", { exact: true }).waitFor();
  expect(await findings(page)).toEqual([]);
  await ann.getByRole("button", { name: "End this sign-in" }).click();
  await ann.getByRole("button", { name: "End this sign-in: press again" }).click();
  await ann.getByText(/^revoked \d/).waitFor();

  const bob = page.getByRole("listitem").filter({ hasText: "local:bob-" });
  await bob.getByRole("button", { name: "Revoke this person" }).click();
  await bob.getByRole("button", { name: "Revoke this person: press again" }).click();
  await bob.locator("[data-kind=beyond]").waitFor();
  await page.getByLabel("Invite").fill("Cleo");
  await page.getByRole("button", { name: "Create a link" }).click();
  const link = await page.getByRole("status").filter({ hasText: "#code=" }).locator("code").innerText();
  const code = link.split("#code=")[1] ?? "";
  await clientOf(CredentialService, service.url).signIn({ code });
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("local:cleo-").waitFor();

  const phone = await browsers.open(service, "admin", { path: "/people", viewport: { width: 360, height: 740 } });
  await phone.getByText("local:cleo-").waitFor();
  expect(await sticksOut(phone)).toBeLessThanOrEqual(0);
  expect(await findings(phone)).toEqual([]);
});

test("a double click revokes no person", async () => {
  await join("Eve");
  const page = await browsers.open(service, "admin", { path: "/people" });
  const eve = page.getByRole("listitem").filter({ hasText: "local:eve-" });
  await eve.getByRole("button", { name: "Revoke this person" }).dblclick();
  await eve.getByRole("button", { name: "Revoke this person: press again" }).waitFor();
  const { people } = await clientOf(PersonService, service.url, admin).listPeople({});
  expect(people.find(({ person }) => person?.name === "Eve")?.revoked).toBe(0);
});

test("a person without a name is asked for it, changes no other person, and adds a device by a link that is a QR code, too", async () => {
  const { code } = await clientOf(CredentialService, service.url, admin).createCode({ newPerson: "" });
  const page = await (await browsers.browser()).newPage();
  await page.goto(`${service.url}/#code=${code}`);
  await page.getByLabel(/Your name/).fill("Dana");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByLabel(/Your name/).waitFor({ state: "detached" });
  await page.goto(`${service.url}/#/people`);
  const own = page.getByRole("listitem").filter({ hasText: "you" }).first();
  await own.getByText("Dana", { exact: true }).waitFor();
  expect(await page.getByRole("button", { name: "Revoke this person" }).count()).toBe(1);
  expect(await page.getByLabel("Invite").count()).toBe(0);

  await page.getByRole("button", { name: "Add a device" }).click();
  const link = await page.locator(".add-device code").last().innerText();
  const [, ownCode = ""] = /^https:\/\/gate\.example\/#code=(.+)$/.exec(link) ?? [];
  const { size, data } = encode(link, { border: 2 });
  const picture = page.getByRole("img", { name: "QR code of the link" });
  expect(await picture.getAttribute("viewBox")).toBe(`0 0 ${size} ${size}`);
  const drawn = [...((await picture.locator("path").getAttribute("d")) ?? "").matchAll(/M(\d+) (\d+)/g)];
  const dark = data.flatMap((row, y) => row.flatMap((isDark, x) => (isDark ? [`${x} ${y}`] : [])));
  expect(drawn.map(([, x, y]) => `${x} ${y}`)).toEqual(dark);
  await clientOf(CredentialService, service.url).signIn({ code: ownCode });
});

test("a card says how many have approved and who, asks for a reason, and follows the votes of others", async () => {
  const page = await (await browsers.browser()).newPage();
  await page.goto(`${service.url}/#token=${await join("Dora")}`);
  await untilLive(page);
  const { call, end } = await ask(service, { command: "echo one" });
  const card = page.getByRole("article");
  await card.getByText("0 of 2, waiting for an approver").waitFor();
  expect(await findings(page)).toEqual([]);
  const other = clientOf(PermissionService, service.url, await join("Emil"));
  const { permissions } = await other.listPermissions({});
  const { id = "", digest = "" } = permissions[0] ?? {};
  const vote = { sessionId: call.sessionId, permissionId: id, reply: PermissionReply.ONCE, reason: "planned" };
  await other.respondToPermission({ ...vote, expectedDigest: digest });
  await card.getByText("1 of 2, waiting for another approver").waitFor();
  await card.getByText("approved by Emil: planned").waitFor();
  await page.getByLabel(/Reason to approve/).fill("because");
  const farewell = farewellOf(page, "Approved once by Emil, Dora");
  await answer(page, /Approve once/);
  await farewell;
  expect((await end()).part?.state.value).toMatchObject({ output: "one\n" });
});

test("a card says for whom the approval of a delegate counts, and offers no grant", async () => {
  const team = await startService();
  const [ann, bob] = [await join("Ann", team), await join("Bob", team)];
  const people = (token: string) => clientOf(PersonService, team.url, token);
  const persons = (await people(admin).listPeople({})).people;
  const of = (name: string) => persons.find(({ person }) => person?.name === name);
  await team.stop();
  const group = `[group.sre]\nmembers = ["local:${of("Ann")?.person?.subject}"]\n`;
  await team.configure(`${group}[[approval]]\npermission = "bash"\nfrom = ["sre"]\n`);
  await team.start();
  await people(ann).putDelegate({
    personId: of("Ann")?.id ?? "",
    to: of("Bob")?.id ?? "",
    until: Date.now() + 3_600_000,
  });
  const page = await (await browsers.browser()).newPage();
  await page.goto(`${team.url}/#token=${bob}`);
  await untilLive(page);
  const { end } = await ask(team, { command: "git status --short" });
  await page.getByRole("article").getByText("your approval counts for Ann, for this call only").waitFor();
  expect(await findings(page)).toEqual([]);
  expect(await sticksOut(page)).toBeLessThanOrEqual(0);
  // At first no button can be pressed.
  await expect.poll(() => page.getByRole("button", { name: /Approve once/ }).isEnabled()).toBe(true);
  expect(await page.getByRole("button", { name: /Always/ }).isEnabled()).toBe(false);
  const farewell = farewellOf(page, "Approved once by Bob");
  await answer(page, /Approve once/);
  await farewell;
  expect((await end()).part?.state.case).toBe("completed");
});
