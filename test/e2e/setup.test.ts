import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { expect, onTestFinished, test } from "vitest";
import { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { main, programEntry } from "../main.ts";
import { clientOf } from "./clients.ts";

/** A home without configuration, and the flags of a service that starts there. */
function freshInstall() {
  const home = mkdtempSync(join(tmpdir(), "toolgate-setup-"));
  onTestFinished(() => rmSync(home, { recursive: true }));
  const workspace = join(home, "project");
  mkdirSync(workspace);
  const serve = ["--listen", "127.0.0.1:0", "--data", join(home, "data"), "--workspace", workspace];
  return { env: { HOME: home }, file: join(home, ".config/toolgate/toolgate.toml"), serve };
}

/** Starts a setup that serves; returns the object that it prints, and the process. */
async function startSetup(args: readonly string[], env: Record<string, string>) {
  const given = { PATH: process.env.PATH, ...env };
  const child: ChildProcess = spawn(process.execPath, [programEntry(), "setup", "--json", ...args], { env: given });
  const closed = once(child, "close");
  let problems = "";
  child.stderr?.on("data", (chunk) => {
    problems += chunk;
  });
  onTestFinished(async () => {
    child.kill("SIGKILL");
    await closed;
  });
  const lines = createInterface({ input: child.stdout ?? process.stdin });
  const [line] = await Promise.race([once(lines, "line"), closed.then(() => ["{}"])]);
  const stop = async () => {
    child.kill("SIGTERM");
    await closed;
  };
  return { ...(JSON.parse(line) as { server: string; address: string; link: string }), stop, problems: () => problems };
}

const unattended = ["--preset", "none", "--agent", "none", "--name", "Ann", "--yes"];

test("setup leads from a fresh install to a link that signs a phone in as the same person, and goes on where it ended", async () => {
  const { env, file, serve } = freshInstall();
  const flags = [...unattended, "--address", "phone.example", ...serve];
  const first = await startSetup(flags, env);
  expect([first.address, first.problems()]).toEqual([
    "https://phone.example",
    expect.stringContaining("does not lead here yet"),
  ]);
  expect(first.link).toMatch(/^https:\/\/phone\.example\/#code=/);
  const text = readFileSync(file, "utf8");
  expect(text).toMatch(/^public_url = "https:\/\/phone\.example"\n/);
  const code = decodeURIComponent(first.link.split("#code=")[1] ?? "");
  const { token } = await clientOf(CredentialService, first.server).signIn({ code, label: "phone" });
  const { people } = await clientOf(PersonService, first.server, token).listPeople({});
  expect(people.map(({ person, devices }) => [person?.name, devices.length])).toEqual([["Ann", 2]]);
  const { pushKey, channels } = await clientOf(ChannelService, first.server, token).listChannels({});
  expect([pushKey.length, channels.map(({ name, kind }) => [name, kind])]).toEqual([65, [["phone", "push"]]]);

  // A service that runs is used, and a sign-in that is there.
  const again = await main(["setup", "--json", ...unattended, "--server", first.server], env);
  expect(JSON.parse(again.stdout)).toMatchObject({ server: first.server, address: "https://phone.example" });
  await first.stop();
  const second = await startSetup([...unattended, ...serve], env);
  expect(second.address).toBe("https://phone.example");
  expect(readFileSync(file, "utf8")).toBe(text);
  const other = await main(["setup", ...unattended, "--address", "https://other.example"], env);
  expect(other).toMatchObject({ code: 2, stderr: expect.stringContaining("names another address") });
});

/** Writes a configuration into a home; returns its file. */
function writeConfig({ file }: ReturnType<typeof freshInstall>, text: string): string {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text, { mode: 0o600 });
  return file;
}

const ntfy = 'kind = "ntfy"\nurl = "https://ntfy.example"\nto = "ops"\n';

test("setup adds no entry after those that decide which requests are sent, and says what to add", async () => {
  const home = freshInstall();
  const text = `public_url = "https://phone.example"\n[channel.ops]\n${ntfy}[[notify]]\nchannels = ["ops"]\n`;
  const file = writeConfig(home, text);
  const started = await startSetup([...unattended, ...home.serve], home.env);
  expect(started.problems()).toContain('has [[notify]] already: add "phone" to the channels');
  expect(started.link).toMatch(/^https:\/\/phone\.example\/#code=/);
  expect(readFileSync(file, "utf8")).toBe(`${text}\n[channel.phone]\nkind = "push"\n`);
});

test("setup leaves a configuration as it is that a service would refuse with its lines", async () => {
  const home = freshInstall();
  const text = `public_url = "https://phone.example"\n[channel.phone]\n${ntfy}`;
  const file = writeConfig(home, text);
  expect(await main(["setup", ...unattended], home.env)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/toolgate\.toml was not changed, since .* these lines: .*toolgate\.toml, line/),
  });
  expect(readFileSync(file, "utf8")).toBe(text);
  expect(readdirSync(dirname(file))).toEqual(["toolgate.toml"]);
});

test.each([
  ["http://127.0.0.1:7420", "means the device that opens it"],
  ["localhost", "means the device that opens it"],
  ["https://[::1]:7420", "means the device that opens it"],
  ["https://box.localhost", "means the device that opens it"],
  ["http://0.0.0.0:7420", "stands for all addresses of this machine"],
  ["ftp://box", "is no address"],
  ["", "is no address"],
])("setup refuses the address %j with the reason, and writes no link", async (address, why) => {
  const { env, file } = freshInstall();
  const { code, stderr } = await main(["setup", ...unattended, "--address", address], env);
  expect([code, stderr]).toEqual([2, expect.stringContaining(why)]);
  expect(readFileSync(file, "utf8")).not.toMatch(/^public_url/m);
});

test("without an address and a terminal setup names one to add", async () => {
  const { env } = freshInstall();
  expect(await main(["setup", ...unattended], env)).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/add --address https:\/\//),
  });
});
