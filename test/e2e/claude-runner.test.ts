import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { spawnToolgate, toolgate } from "../cli/toolgate.ts";
import { clientOf } from "./clients.ts";
import { useService } from "./service.ts";

const service = useService();

/** Creates a home with a program `claude` in its PATH. */
async function createHome() {
  const home = await mkdtemp(join(tmpdir(), "toolgate-runner-"));
  onTestFinished(() => rm(home, { recursive: true, force: true }));
  await mkdir(join(home, "bin"));
  await symlink(join(import.meta.dirname, "../cli/fake-deferring-claude.mjs"), join(home, "bin/claude"));
  const PATH = `${join(home, "bin")}:${process.env.PATH}`;
  return { home, env: { HOME: home, PATH, FAKE_WORKSPACE: service.workspace } };
}

test("a use that waits ends the run, which is resumed after the decision without the prompt", {
  timeout: 120_000,
}, async () => {
  const { home, env } = await createHome();
  const approver = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  expect(await toolgate(["connect", "claude", "--yes", "--no-canary"], { ...env, ...approver })).toMatchObject({
    code: 0,
  });
  const runs = () =>
    readFileSync(join(home, "runs"), "utf8")
      .trim()
      .split("\n")
      .map((line): string[] => JSON.parse(line));
  const permissions = clientOf(PermissionService, service.url, "approver-token-for-tests");
  const decisions = join(home, ".local/state/toolgate/decisions");
  const runAndAnswer = async (reply: PermissionReply) => {
    await rm(join(home, "runs"), { force: true });
    const { finished } = spawnToolgate(["claude", "--", "go", "--model", "opus"], env);
    // The run is deferred after 20 s, and only then answered.
    await vi.waitFor(() => expect(existsSync(join(home, "runs"))).toBe(true), { timeout: 20_000, interval: 100 });
    await vi.waitFor(async () => expect(await deferredIn(decisions)).toBe(true), { timeout: 60_000, interval: 200 });
    const [open] = (await permissions.listPermissions({})).permissions;
    await permissions.respondToPermission({ permissionId: open?.id ?? "", sessionId: open?.sessionId ?? "", reply });
    return await finished;
  };
  expect(await runAndAnswer(PermissionReply.ONCE)).toEqual({ code: 0, stdout: "ran it\n", stderr: "" });
  expect(existsSync(join(service.workspace, "marker"))).toBe(true);
  const [first, second, ...more] = runs();
  expect(first?.slice(0, 4)).toEqual(["-p", "go", "--model", "opus"]);
  expect(second).toEqual(["-p", "--model", "opus", "--output-format", "json", "--resume", first?.at(-1)]);
  expect(more).toEqual([]);

  await rm(join(service.workspace, "marker"));
  const rejected = await runAndAnswer(PermissionReply.REJECT);
  expect(rejected).toMatchObject({ code: 3, stdout: expect.stringMatching(/reject/i) });
  expect(existsSync(join(service.workspace, "marker"))).toBe(false);
  await toolgate(["disconnect", "claude"], { ...env, ...approver });
});

/** Checks if the hook left a waiting decision with a request, which it does when it defers. */
async function deferredIn(directory: string): Promise<boolean> {
  const texts = await Promise.all((await readdir(directory)).map((name) => readFile(join(directory, name), "utf8")));
  return texts.some((text) => text.includes('"permissions"'));
}

test("without claude, and without a connector, the next step is named", async () => {
  const { home, env } = await createHome();
  const none = await toolgate(["claude", "--", "go"], { HOME: home, PATH: "/nonexistent" });
  expect(none).toMatchObject({ code: 2, stderr: expect.stringContaining("npm install -g @anthropic-ai/claude-code") });
  expect(await toolgate(["claude", "--", "go"], env)).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("run `toolgate connect claude`"),
  });
});
