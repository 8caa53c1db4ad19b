import { once } from "node:events";
import { mkdir, mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { type Service, startService } from "./service.ts";

const preset = '[preset]\nname = "contained"\nregistries = ["packages.example"]\n';

/** Runs command lines in one session; an approver answers each request, and what was asked is returned. */
async function opened(service: Service, reply: PermissionReply = PermissionReply.ONCE) {
  const [agent, person] = [connect(service, "caller"), connect(service, "approver")];
  const sessionId = await agent.newSession();
  let calls = 0;
  return async (command: string, more: JsonObject = {}) => {
    calls += 1;
    const input = { command, ...more };
    const stream = agent.tools.executeTool({ sessionId, callId: `c${calls}`, tool: "bash", input });
    const asked: string[] = [];
    for await (const { event } of stream) {
      if (event?.event.case !== "permissionAsked") continue;
      const { id: permissionId, permission, patterns } = event.event.value;
      asked.push([permission, ...patterns].join(" "));
      // A refusal ends the call with its other requests.
      if (asked.length === 1 || reply !== PermissionReply.REJECT)
        await person.permissions.respondToPermission({ sessionId, permissionId, reply });
    }
    const { part } = await agent.tools.getToolPart({ sessionId, callId: `c${calls}` });
    const { value } = part?.state ?? {};
    return { asked, output: value && "output" in value ? value.output : undefined, case: part?.state.case };
  };
}

test("a contained line runs without an ask: in the workspace, in private temporary files, on what every command sees", async () => {
  const service = await startService({ settings: preset });
  const run = await opened(service);
  // A line without `$` is read at once; a busy machine may not read another one in time, and asks.
  const line = "printf '1\\n2\\n' > made.txt && head -1 /etc/passwd >> made.txt && cp made.txt /tmp/private-copy";
  expect(await run(line)).toMatchObject({ asked: [], case: "completed" });
  expect(await readFile(join(service.workspace, "made.txt"), "utf8")).toMatch(/^1\n2\nroot:/);
  // The host's /tmp has no such file, and the next command of the session has it.
  await expect(readFile("/tmp/private-copy")).rejects.toThrow("ENOENT");
  expect(await run("cat /tmp/private-copy")).toMatchObject({
    asked: [],
    output: expect.stringMatching(/^1\n2\nroot:/),
  });
});

test("a line that reaches further asks, and what it hides from the analysis the kernel refuses", async () => {
  const outside = await realpath(await mkdtemp(join(homedir(), ".toolgate-test-")));
  onTestFinished(() => rm(outside, { recursive: true }));
  await writeFile(join(outside, "file"), "of the host\n");
  const service = await startService({ settings: preset });
  await mkdir(join(service.workspace, ".git/hooks"), { recursive: true });
  for (const name of [".env", "plain.txt", ".git/config"]) await writeFile(join(service.workspace, name), "before\n");
  const run = await opened(service, PermissionReply.REJECT);
  const asking: [line: string, asked: string][] = [
    [`cat ${outside}/file`, `external_directory ${outside}/*`],
    [`echo x > ${outside}/file`, `external_directory ${outside}/*`],
    ["cat .env", "read .env"],
    ["echo x >> .git/config", "edit .git/config"],
    ["rm plain.txt", "bash rm plain.txt"],
    ["cat /proc/1/environ", "external_directory /proc/1/*"],
    ["npx some-tool", "bash npx some-tool"],
  ];
  for (const [line, asked] of asking)
    expect(await run(line), line).toMatchObject({ asked: expect.arrayContaining([asked]), case: "error" });
  const hidden = [
    `cat ${outside}/file`,
    `echo x > ${outside}/file`,
    "cat .env",
    "echo x >> .git/config",
    "echo x > .git/hooks/pre-push",
  ];
  for (const [i, line] of hidden.entries()) {
    await writeFile(join(service.workspace, `script${i}.sh`), `${line} || echo held\n`);
    const { asked, output } = await run(`bash script${i}.sh`);
    expect({ line, asked, output }).toMatchObject({ asked: [], output: expect.stringContaining("held") });
    expect(output).not.toMatch(/of the host|before/);
  }
  expect(await readFile(join(outside, "file"), "utf8")).toBe("of the host\n");
  expect(await readFile(join(service.workspace, ".git/config"), "utf8")).toBe("before\n");
});

test("a host that a line names is asked before the start, any other is refused at once with the rule to add", async () => {
  const server = createServer((_, response) => response.end("reached"));
  server.listen(0, "127.0.0.2");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const url = `http://127.0.0.2:${(server.address() as AddressInfo).port}/`;
  const service = await startService({ settings: `${preset}[permission.webfetch]\n"${url}*" = "ask"\n` });
  const run = await opened(service);
  expect(await run(`curl -sS ${url}`)).toEqual({ asked: [`webfetch ${url}`], output: "reached", case: "completed" });
  await writeFile(join(service.workspace, "script.sh"), `curl -sS ${url}`);
  const computed = await run("bash script.sh");
  expect(computed.asked).toEqual([]);
  expect(computed.output).toContain(`no rule allows ${url}, and no one is asked. Add "${url}*" = "allow"`);
  expect(computed.output).not.toContain("reached");
});

test("the service reports the preset, and its rules are listed and explained", async () => {
  const service = await startService({ settings: preset });
  const { permissions } = connect(service, "approver");
  const { preset: reported } = await connect(service, "caller").tools.getServerInfo({});
  expect(reported).toMatchObject({ name: "contained", registries: ["packages.example"], problem: "" });
  const { lists } = await permissions.listRules({ agent: "build" });
  expect(lists.map(({ layer }) => layer).slice(0, 3)).toEqual([
    ...[PermissionLayer.DEFAULTS, PermissionLayer.PRESET, PermissionLayer.CONFIG],
  ]);
  expect(lists[1]?.rules.map(({ permission, when }) => [permission, when])).toEqual([
    ["bash", "contained && risk.only(['network', 'outside', 'packages'])"],
    ["edit", "contained"],
    ["webfetch", "contained"],
  ]);
  const { action, decisions } = await permissions.explainPermission({
    permission: "bash",
    patterns: ["echo x > ~/file"],
  });
  expect(action).toBe(PermissionAction.ASK);
  expect(decisions[0]?.reason).toMatch(
    /^preset rule 0 .* does not count, since contained is false: it reaches .*, which is outside the workspace/,
  );
});

test.each([
  ['[sandbox]\nprofile = "off"\n', {}, 'runs without a sandbox, since profile = "off"'],
  ['[sandbox]\nnetwork = "open"\n', {}, 'reaches every host, since network = "open"'],
  ["", { PATH: "/nowhere" }, "runs without a sandbox, since bubblewrap is not installed"],
])("without the whole sandbox (%j, %o) each command asks, and the service says why", async (settings, env, why) => {
  const service = await startService({ settings: preset + settings, env });
  const { tools } = connect(service, "caller");
  const plan = await tools.planTool({ agent: "build", tool: "bash", input: { command: "echo x" } });
  expect(plan.action).toBe(PermissionAction.ASK);
  expect(plan.decisions[0]?.reason).toContain(why);
  expect((await tools.getServerInfo({})).preset?.problem).toContain(why);
});

test("conditions are refused where a caller brings the rule", async () => {
  const service = await startService({ settings: preset });
  const { tools, newSession } = connect(service, "caller");
  const rules = [{ permission: "bash", pattern: "*", action: PermissionAction.ALLOW, when: "contained" }];
  const refused = expect.objectContaining({ message: expect.stringContaining("has a condition (when)") });
  await expect(newSession({ rules })).rejects.toEqual(refused);
  await expect(tools.planTool({ tool: "bash", input: { command: "ls" }, rules })).rejects.toEqual(refused);
});
