import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { KnownBlock } from "@slack/types";
import { expect, onTestFinished, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { AnswerMethod, PermissionOutcome, Shown } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { PermissionReply, PermissionRequestSchema, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ChannelContent } from "../../src/reach/ports.ts";
import { readTarget } from "../../src/reach/post.ts";
import { createSlack, createSlackCall, slackMessage } from "../../src/reach/slack.ts";
import { toolgate } from "../cli/toolgate.ts";
import { clientOf, connect, refusal } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { startRedis } from "../store/redis-server.ts";
import { appToken, botToken, pressOf, problemsOf, slackIds, startSlack, submitOf } from "./slack-provider.ts";

type Fields = MessageInitShape<typeof PermissionRequestSchema>;

const hostile =
  "<!channel> <https://evil.example|Approve> @here *bold* `code` &lt;!here&gt; https://evil.example\n\u202e";

function requestOf(fields: Fields = {}) {
  const command = "git push --force";
  const given: Fields = {
    ...{
      id: "per_1",
      sessionId: "ses_1",
      permission: "bash",
      agent: "build",
      expires: Date.parse("2026-11-24T13:15:00Z"),
    },
    ...{ digest: "a".repeat(64), display: [command], patterns: [command] },
    risks: [{ kind: RiskKind.PUBLISH, parts: [command] }],
    view: { tool: "bash", input: [{ path: "/command", text: command, bytes: 16n }], complete: true },
  };
  return create(PermissionRequestSchema, { ...given, ...fields } as Fields);
}

function blocksOf(fields: Fields = {}, content: ChannelContent = "full", mayApprove = true) {
  const url = "https://gate.example/r/per_1";
  const message = slackMessage(
    { phase: "opened", request: requestOf(fields), url, id: "msg_1", ref: "", recipient: "" },
    { content, mayApprove },
  );
  // The types of the vendor accept every block.
  const blocks: KnownBlock[] = message.blocks;
  expect(problemsOf("chat.postMessage", { channel: slackIds.channel, ...message })).toEqual([]);
  const buttons = blocks.flatMap((block) =>
    block.type === "actions"
      ? block.elements.flatMap((element) => ("action_id" in element ? [element.action_id] : []))
      : [],
  );
  return { message, blocks, buttons, json: JSON.stringify(message) };
}

test("a message lets people approve only what it shows whole, at full content, where a rule allows it", () => {
  expect(blocksOf().buttons).toEqual(["open", "reject", "approve"]);
  expect(blocksOf().json).toContain("command: git push --force");
  // What the message has anyway, such as a command line or the prompt of a task, is not behind the link.
  expect(blocksOf({ preview: { command: "git push --force" } }).buttons).toEqual(["open", "reject", "approve"]);
  expect(blocksOf().json).not.toContain("bash: git push");
  // A directory that only a link of the input leads to is part of what is shown.
  const elsewhere = blocksOf({ permission: "external_directory", display: ["/etc/*"] });
  expect(elsewhere.buttons).toEqual(["open", "reject", "approve"]);
  expect(elsewhere.json).toContain("external_directory: /etc/*");
  expect(blocksOf({ preview: { hosts: ["evil.example"] } }).json).toContain("sent to: evil.example");
  const behindLink: [why: string, fields: Fields, content?: ChannelContent, mayApprove?: boolean][] = [
    ["no rule allows it", {}, "full", false],
    ["the content is risk", {}, "risk"],
    ["something is not shown", { view: { tool: "bash", complete: false } }],
    ["it has no view", { view: undefined as never }],
    ["a file runs", { view: { tool: "bash", complete: true, files: [{ path: "deploy.sh", lines: 3 }] } }],
    ["a value is cut", { view: { tool: "bash", complete: true, input: [{ path: "/a", text: "a", sha256: "b" }] } }],
    ["a file changes", { preview: { diff: "+a" } }],
    ["a model reads what its input does not have", { preview: { text: "Steps of a skill" } }],
    ["a program starts that its input does not name", { preview: { command: "gopls serve" } }],
    ["what it asks for is long", { display: ["a".repeat(3_001)] }],
    ["it asks a question", { question: [{ question: "Which?" }] }],
    ["it is long", { view: { tool: "bash", complete: true, input: [{ path: "/command", text: "a".repeat(3_001) }] } }],
  ];
  for (const [why, fields, content, mayApprove] of behindLink)
    expect([why, blocksOf(fields, content, mayApprove).buttons]).toEqual([why, ["open", "reject"]]);
  expect(blocksOf({}, "risk").json).not.toContain("git push");
  const none = blocksOf({}, "none");
  expect(none.buttons).toEqual(["open"]);
  expect(none.json).not.toMatch(/build|bash|publishes|git push/);
});

test("text of an agent mentions nobody, makes no link and stays within the limits of the vendor", () => {
  const long = hostile.repeat(100);
  const view = { tool: "bash", complete: true, input: [{ path: "/command", text: hostile, bytes: 9n }] };
  for (const fields of [
    { agent: hostile, permission: hostile, view },
    { agent: long, permission: long, view: { ...view, input: [{ path: "/command", text: long, bytes: 9n }] } },
    { agent: hostile, warnings: [hostile], view, display: [hostile] },
  ])
    for (const content of ["none", "risk", "full"] as const) {
      const { message, blocks } = blocksOf(fields, content);
      expect(message.text).not.toMatch(/[<>]|:\/\//);
      const addresses = blocks.filter(({ type }) => type !== "rich_text" && type !== "actions");
      expect(JSON.stringify(addresses)).not.toContain("://");
    }
});

test.each([
  [{}, { answer: "accepted", ref: `${slackIds.channel}/1700000000.000001` }],
  [
    { status: 429, headers: { "retry-after": "7" } },
    { answer: "retry", why: "it answered http_429", afterMs: 7_000 },
  ],
  [{ status: 503 }, { answer: "retry", why: "it answered http_503" }],
  [{ body: { ok: false, error: "ratelimited" } }, { answer: "retry", why: "it answered ratelimited" }],
  [{ body: { ok: false, error: "channel_not_found" } }, { answer: "refused", why: "it answered channel_not_found" }],
  [
    { body: { ok: false, error: "token_revoked" } },
    { answer: "refused", why: "it answered token_revoked", disable: true },
  ],
  [{ body: [] }, { answer: "refused", why: "it answered " }],
])("the answer %j of Slack", async (override, expected) => {
  const slack = await startSlack();
  if (Object.keys(override).length > 0) slack.overrides.push(override);
  const call = createSlackCall(readTarget(slack.url), botToken);
  const channel = createSlack({ call, to: slackIds.channel, content: "risk", mayApprove: async () => true });
  const notice = { id: "msg_per_1_opened", phase: "opened" as const, request: requestOf(), recipient: "" };
  const url = "https://gate.example/r/per_1";
  expect(await channel.send({ ...notice, url, ref: "" }, AbortSignal.timeout(30_000))).toEqual(expected);
});

/** A service with a channel of Slack, a person who is signed in, and a caller. */
async function start(store: "sqlite" | "redis", content = "full") {
  const slack = await startSlack();
  const redis = store === "redis" ? await startRedis() : undefined;
  if (redis) onTestFinished(redis.stop);
  const directory = await mkdtemp(join(tmpdir(), "toolgate-slack-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  await writeFile(join(directory, "slack"), `${botToken}\n${appToken}\n`);
  const settings =
    `public_url = "https://gate.example"\n${redis ? `store = "${redis.url}"\n` : ""}` +
    `[channel.ops]\nkind = "slack"\nurl = "${slack.url}"\nsecret_file = "${directory}/slack"\n` +
    `to = "${slackIds.channel}"\nteam = "${slackIds.team}"\ncontent = "${content}"\n` +
    // Another channel of the same app.
    `[channel.security]\nkind = "slack"\nurl = "${slack.url}"\nsecret_file = "${directory}/slack"\n` +
    `to = "C0SECURITY"\nteam = "${slackIds.team}"\n` +
    '[[notify]]\npermission = "bash"\nchannels = ["ops"]\napprove = true\n[[notify]]\nchannels = ["ops"]\n';
  const service = await startService({ settings });
  const join_ = async (newPerson: string) => {
    const { code } = await clientOf(CredentialService, service.url, "admin-token-for-tests").createCode({ newPerson });
    const { token, credential } = await clientOf(CredentialService, service.url).signIn({ code });
    return { token, id: credential?.personId ?? "", people: clientOf(PersonService, service.url, token) };
  };
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  let calls = 0;
  const posted = () => slack.of("chat.postMessage");
  return {
    ...{ slack, service, settings, agent, join: join_, posted },
    permissions: () => clientOf(PermissionService, service.url, "admin-token-for-tests"),
    /** Makes a call that asks, and returns its message. */
    async ask(command: string, callId = `c${++calls}`) {
      const before = posted().length;
      await agent.tools.callTool({ sessionId, callId, tool: "bash", input: { command }, waitMs: 0 });
      await expect.poll(() => posted().length, { timeout: 20_000 }).toBeGreaterThan(before);
      const { blocks } = posted().at(-1);
      const { elements } = blocks.at(-1);
      const value: string = elements[1].value;
      return {
        ...{
          value,
          permissionId: value.split(":")[0] ?? "",
          ts: `1700000000.${String(posted().length).padStart(6, "0")}`,
        },
        buttons: elements.map((each: { action_id: string }) => each.action_id),
      };
    },
    async isConnected() {
      await expect.poll(slack.sockets, { timeout: 20_000 }).toBe(1);
    },
  };
}

type Started = Awaited<ReturnType<typeof start>>;

/** Links the account of the fake's user to a person, by the form behind a button. */
async function link(
  { slack }: Started,
  { people }: Awaited<ReturnType<Started["join"]>>,
  asked: { value: string; ts: string },
) {
  slack.deliver(pressOf("approve", asked.value, asked.ts));
  await expect.poll(() => slack.of("views.open").at(-1)?.view.callback_id, { timeout: 20_000 }).toBe("link");
  const { code } = await people.linkAccount({});
  const id = slack.deliver(submitOf("link", ` ${code.toUpperCase()} `));
  await expect.poll(() => slack.acks.has(id), { timeout: 20_000 }).toBe(true);
  expect(slack.acks.get(id)).toBeUndefined();
  return code;
}

test.each(["sqlite", "redis"] as const)(
  "on %s a person links an account, approves and rejects in Slack, also after a kill -9 between a message and its record",
  async (store) => {
    const at = await start(store);
    const { slack, service, ask } = at;
    const ann = await at.join("Ann");
    const first = await ask("echo first");
    expect(first.buttons).toEqual(["open", "reject", "approve"]);
    await link(at, ann, first);
    const account = `slack:${slackIds.team}/${slackIds.user}`;
    const { people } = await ann.people.listPeople({});
    expect(people.find(({ id }) => id === ann.id)?.accounts).toMatchObject([{ id: account }]);
    // Slack announces the end of a socket before it closes it: what comes over it until then counts.
    slack.push({ type: "disconnect", reason: "refresh_requested", debug_info: {} });
    slack.deliver(pressOf("approve", first.value, first.ts));
    slack.deliver(pressOf("approve", first.value, first.ts));
    const settledOf = async (permissionId: string) => (await at.permissions().getPermission({ permissionId })).settled;
    await expect.poll(() => settledOf(first.permissionId), { timeout: 20_000 }).toBeDefined();
    expect(await settledOf(first.permissionId)).toMatchObject({
      ...{ outcome: PermissionOutcome.ONCE, by: "channel:ops", channel: "ops", method: AnswerMethod.CHANNEL },
      ...{ person: { id: ann.id, name: "Ann" }, shown: Shown.WHOLE },
    });
    const updates = (ts: string) => slack.of("chat.update").filter((each) => each.ts === ts);
    await expect
      .poll(() => JSON.stringify(updates(first.ts)), { timeout: 20_000 })
      .toContain("approved once by Ann (at ops)");
    expect(JSON.stringify(updates(first.ts))).not.toContain('action_id":"approve');
    await expect.poll(slack.opened, { timeout: 20_000 }).toBe(2);
    await at.isConnected();
    const late = slack.deliver(pressOf("approve", first.value, first.ts));
    await expect.poll(() => slack.acks.has(late), { timeout: 20_000 }).toBe(true);

    // The message is posted, and the process ends before it can record that.
    slack.overrides.push("hold");
    const second = await ask("echo second");
    await service.kill();
    await service.start();
    await at.isConnected();
    slack.deliver(pressOf("reject", second.value, second.ts));
    await expect.poll(() => slack.of("views.open").at(-1)?.view.callback_id, { timeout: 20_000 }).toBe("reject");
    slack.deliver(submitOf("reject", "use staging", slack.of("views.open").at(-1)?.view.private_metadata));
    await expect.poll(() => settledOf(second.permissionId), { timeout: 20_000 }).toBeDefined();
    expect(await settledOf(second.permissionId)).toMatchObject({
      ...{ outcome: PermissionOutcome.REJECT, message: "use staging", method: AnswerMethod.CHANNEL },
      person: { id: ann.id },
    });
    await expect
      .poll(() => JSON.stringify(updates(second.ts)), { timeout: 20_000 })
      .toContain("rejected by Ann (at ops)");
    expect(slack.problems).toEqual([]);
    for (const secret of [appToken, botToken])
      expect(await readFile(join(service.data, "log/toolgate.log"), "utf8")).not.toContain(secret);
  },
  90_000,
);

test("of forged, replayed, cross-team, cross-request and injected payloads none is accepted", async () => {
  const at = await start("sqlite");
  const { slack, service, ask } = at;
  const [ann, bob] = [await at.join("Ann"), await at.join("Bob")];
  const [target, other] = [await ask("echo target"), await ask("echo other")];
  await writeFile(join(service.workspace, "deploy.sh"), "true\n");
  const unshown = await ask("sh deploy.sh");
  expect(unshown.buttons).toEqual(["open", "reject"]);
  const code = await link(at, ann, target);
  const press = (fields: object = {}, { value = target.value, ts = target.ts } = {}) => ({
    ...pressOf("approve", value, ts),
    ...fields,
  });
  const action = (fields: object) =>
    press({ actions: [{ ...pressOf("approve", target.value, target.ts).actions[0], ...fields }] });
  const [id = "", digest = ""] = target.value.split(":");
  const [otherId = "", otherDigest = ""] = other.value.split(":");
  const metadata = (value: unknown, ts: unknown = target.ts) => JSON.stringify({ to: slackIds.channel, value, ts });
  const submit = (fields: object, view: object = {}) => {
    const whole = submitOf("reject", "no", metadata(target.value));
    return { ...whole, ...fields, view: { ...whole.view, ...view } };
  };
  const stranger = { id: "U0MALLORY", team_id: slackIds.team };
  const forged: unknown[] = [
    // Of another app, team, account or channel.
    press({ api_app_id: "A0OTHER" }),
    press({ api_app_id: undefined }),
    press({ team: { id: "T0OTHER" } }),
    press({ team: null }),
    press({ user: { id: slackIds.user, team_id: "T0OTHER" } }),
    press({ user: { id: "U0MALLORY", team_id: slackIds.team } }),
    press({ user: { id: slackIds.user.toLowerCase(), team_id: slackIds.team } }),
    press({ user: { id: `${slackIds.user}/../U0ANN`, team_id: slackIds.team } }),
    press({ user: { id: ["U0ANN"], team_id: slackIds.team } }),
    press({ user: { username: "ann", name: "Ann", email: "ann@corp.example" } }),
    press({ user: null }),
    press({ channel: { id: "C0OTHER" } }),
    press({ channel: undefined }),
    // Of another kind.
    press({ type: "shortcut" }),
    press({ type: "view_submission" }),
    press({ type: "message_action" }),
    { ...press(), type: undefined },
    null,
    "approve",
    [press()],
    // With other actions.
    action({ action_id: "always" }),
    action({ action_id: "open" }),
    action({ action_id: "approve " }),
    action({ block_id: "other" }),
    press({ actions: [] }),
    press({ actions: [...press().actions, ...press().actions] }),
    press({ actions: "approve" }),
    press({ message: { ts: "1;DROP" } }),
    press({ message: undefined }),
    // Of another request, or with another digest.
    press({}, { value: `${id}:${otherDigest}` }),
    press({}, { value: `${id}:${"0".repeat(64)}` }),
    press({}, { value: `${id}:${digest.slice(0, 32)}` }),
    press({}, { value: `${id}:` }),
    press({}, { value: id }),
    press({}, { value: `${id}:${digest}:${otherId}` }),
    press({}, { value: `per_unknown:${digest}` }),
    press({}, { value: `../${id}:${digest}` }),
    press({}, { value: `${id}\n${otherId}:${digest}` }),
    press({}, { value: unshown.value, ts: unshown.ts }),
    // Forms.
    submit({ api_app_id: "A0OTHER" }),
    submit({ team: { id: "T0OTHER" } }),
    submit({ user: stranger }),
    submit({}, { team_id: "T0OTHER" }),
    submit({}, { app_id: "A0OTHER" }),
    submit({}, { callback_id: "approve" }),
    submit({}, { private_metadata: "" }),
    submit({}, { private_metadata: JSON.stringify({ value: target.value, ts: target.ts }) }),
    submit({}, { private_metadata: JSON.stringify({ to: "C0OTHER", value: target.value, ts: target.ts }) }),
    submit({}, { private_metadata: "{" }),
    submit({}, { private_metadata: metadata(`${id}:${otherDigest}`) }),
    submit({}, { private_metadata: metadata([target.value]) }),
    submit({}, { private_metadata: metadata(target.value, "x") }),
    // Codes that are used, of no one, or injected.
    { ...submitOf("link", code), user: stranger },
    { ...submitOf("link", "0000-0000-0000-0000"), user: stranger },
    { ...submitOf("link", ""), user: stranger },
    { ...submitOf("link", null), user: stranger },
    { ...submitOf("link", `code:${code}`), user: stranger },
    // Replayed or stolen: the account is that of Ann.
    submitOf("link", (await bob.people.linkAccount({})).code),
  ];
  const ids = forged.map((payload) => slack.deliver(payload));
  for (const type of ["events_api", "slash_commands", "", "hello"]) ids.push(slack.deliver(press(), type));
  slack.push({ type: "interactive", payload: press() });
  // What comes after them is accepted, so they were taken before.
  await expect.poll(() => ids.filter((each) => !slack.acks.has(each)), { timeout: 20_000 }).toEqual([]);
  slack.deliver(pressOf("approve", other.value, other.ts));
  const settledOf = async (permissionId: string) => (await at.permissions().getPermission({ permissionId })).settled;
  await expect.poll(() => settledOf(otherId), { timeout: 20_000 }).toMatchObject({ person: { id: ann.id } });
  expect(await settledOf(id)).toBeUndefined();
  expect(await settledOf(unshown.permissionId)).toBeUndefined();
  expect(forged.length).toBeGreaterThanOrEqual(50);
  const { people } = await ann.people.listPeople({});
  expect(people.flatMap(({ accounts }) => accounts).map((each) => each.id)).toEqual([
    `slack:${slackIds.team}/${slackIds.user}`,
  ]);

  // A person whose sign-ins ended answers nothing, and one without a link neither.
  const env = { HOME: join(service.data, "home"), TOOLGATE_URL: service.url, TOOLGATE_TOKEN: ann.token };
  const shown = await toolgate(["people"], env);
  expect(shown.stdout).toContain(`slack:${slackIds.team}/${slackIds.user}  linked at`);
  expect(await refusal(clientOf(PersonService, service.url, "approver-token-for-tests").linkAccount({}))).toMatchObject(
    {
      reason: "METHOD_TOO_WEAK",
    },
  );
  const notMine = bob.people.unlinkAccount({ personId: ann.id, id: `slack:${slackIds.team}/${slackIds.user}` });
  expect(await refusal(notMine)).toMatchObject({ reason: "ROLE_MISSING" });
  await at.permissions().respondToPermission({
    ...{ sessionId: (await at.permissions().getPermission({ permissionId: id })).permission?.sessionId ?? "" },
    ...{ permissionId: id, reply: PermissionReply.REJECT },
  });
  slack.deliver(press());
  await expect
    .poll(() => slack.of("chat.postEphemeral").at(-1)?.blocks[0].text.text, { timeout: 20_000 })
    .toContain('was answered "reject" by admin');
  const unlinked = await toolgate(["people", "revoke", `slack:${slackIds.team}/${slackIds.user}`], env);
  expect(unlinked.stdout).not.toContain("linked at");
  expect(slack.problems).toEqual([]);
}, 90_000);
