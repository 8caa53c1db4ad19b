import { spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { clientOf, connect } from "../e2e/clients.ts";
import { startService, unconfined } from "../e2e/service.ts";
import { makeCertificates } from "../edge/certificates.ts";
import { freePorts } from "../store/redis-server.ts";
import { signIn } from "./push-service.ts";

const root = resolve(import.meta.dirname, "../..");

/** Copies the programs into a directory that has the packages of this one. */
async function copyPrograms(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-recipes-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  await cp(join(root, "examples/channels"), directory, { recursive: true });
  await symlink(join(root, "node_modules"), join(directory, "node_modules"));
  return directory;
}

/** Starts one of these programs; resolves once it listens. */
async function startProgram(directory: string, name: string, env: Readonly<Record<string, string>>): Promise<void> {
  const child = spawn(process.execPath, [name], {
    ...{ cwd: directory, env: { PATH: process.env.PATH, ...env }, stdio: ["ignore", "inherit", "inherit"] },
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  const status = () =>
    fetch(`http://127.0.0.1:${env.PORT}/`, { method: "POST", body: "{}" }).then(({ status }) => status);
  // What nobody signed is refused.
  await expect.poll(() => status().catch(() => 0), { timeout: 20_000 }).toBe(401);
}

/** A message of the webhook of a workflow, by the reference of Teams and of adaptive cards 1.4; nothing else may be in it. */
const teamsMessage = z.strictObject({
  type: z.literal("message"),
  attachments: z.tuple([
    z.strictObject({
      contentType: z.literal("application/vnd.microsoft.card.adaptive"),
      content: z.strictObject({
        type: z.literal("AdaptiveCard"),
        version: z.literal("1.4"),
        body: z.array(
          z.strictObject({
            type: z.literal("RichTextBlock"),
            inlines: z.array(z.strictObject({ type: z.literal("TextRun"), text: z.string().min(1) })).min(1),
          }),
        ),
        actions: z.array(z.strictObject({ type: z.literal("Action.OpenUrl"), title: z.string(), url: z.url() })).max(6),
      }),
    }),
  ]),
});

const keyboard = z.strictObject({
  inline_keyboard: z.array(
    z.array(
      z.union([
        z.strictObject({ text: z.string().min(1), url: z.url() }),
        z.strictObject({ text: z.string().min(1), callback_data: z.string().min(1).max(64) }),
      ]),
    ),
  ),
});
const telegramText = {
  ...{ chat_id: z.literal("-42"), text: z.string().min(1).max(4_096), reply_markup: keyboard },
  entities: z.array(z.strictObject({ type: z.literal("pre"), offset: z.literal(0), length: z.int().positive() })),
};

/** Methods of the Bot API, by its reference. */
const telegramMethods: Readonly<Record<string, z.ZodType>> = {
  sendMessage: z.strictObject(telegramText),
  editMessageText: z.strictObject({ ...telegramText, message_id: z.int() }),
  getUpdates: z.strictObject({
    offset: z.int(),
    timeout: z.int(),
    allowed_updates: z.array(z.literal("callback_query")),
  }),
  answerCallbackQuery: z.strictObject({ callback_query_id: z.string(), text: z.string().max(200) }),
};

/** Starts the vendors that speak HTTP on this machine; what differs from their references is a problem, and refused. */
async function startVendors() {
  const requests: { method: string; body: Record<string, unknown> }[] = [];
  const problems: string[] = [];
  const pressed: object[] = [];
  const polls: (() => void)[] = [];
  let count = 0;
  const server = createServer(async (request, response) => {
    const method = request.url?.split("/").at(-1) ?? "";
    const body = JSON.parse(await text(request));
    const { error } = (method === "teams" ? teamsMessage : telegramMethods[method])?.safeParse(body) ?? {};
    if (error) problems.push(`${method}: ${error.message}`);
    if (method === "getUpdates" && pressed.length === 0) await new Promise<void>((go) => polls.push(go));
    else if (method !== "getUpdates") requests.push({ method, body });
    // Teams and Telegram get their notices in any order.
    const newId = () => (method === "teams" ? 0 : ++count);
    const result = method === "getUpdates" ? pressed.splice(0) : { message_id: body.message_id ?? newId() };
    response.writeHead(error ? 400 : 200, { "content-type": "application/json" });
    response.end(method === "teams" ? "" : JSON.stringify({ ok: !error, result }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    problems,
    of: (method: string) => requests.filter((each) => each.method === method).map(({ body }) => body),
    /** Presses a button as an account. */
    press(account: number, data: string) {
      pressed.push({ update_id: ++count, callback_query: { id: String(count), from: { id: account }, data } });
      for (const go of polls.splice(0)) go();
    },
  };
}

interface SmtpServer {
  listen(port: number, host: string, done: () => void): { address(): AddressInfo };
  close(done?: () => void): void;
}

const { SMTPServer }: { SMTPServer: new (options: object) => SmtpServer } = createRequire(import.meta.url)(
  "smtp-server",
);

/** Starts a submission server that takes mail after STARTTLS and a sign-in only. */
async function startMail({ cert, key }: { cert: string; key: string }) {
  const mails: { secure: boolean; user: string; text: string }[] = [];
  const server = new SMTPServer({
    ...{ cert, key, logger: false },
    onAuth: ({ username, password }: Record<string, string>, { secure }: { secure: boolean }, done: Done) =>
      secure && password === "secret" ? done(null, { user: username }) : done(new Error("refused")),
    onData(stream: NodeJS.ReadableStream, { secure, user }: { secure: boolean; user: string }, done: Done) {
      void text(stream).then((whole) => {
        // Long headers are folded.
        mails.push({ secure, user, text: whole.replaceAll("\r\n", "\n").replaceAll(/\n[ \t]+/g, " ") });
        done(null);
      });
    },
  });
  const { port } = await new Promise<AddressInfo>((resolve) => {
    const listening = server.listen(0, "127.0.0.1", () => resolve(listening.address()));
  });
  onTestFinished(() => server.close());
  return { mails, url: `smtp://gate:secret@127.0.0.1:${port}?requireTLS=true` };
}

type Done = (error: Error | null, result?: object) => void;

test("the programs of examples/channels reach Teams, mail and Telegram, where a linked person approves, and nobody else", async () => {
  const made = await makeCertificates();
  onTestFinished(made.remove);
  const [vendors, mail, directory] = [await startVendors(), await startMail(made.server), await copyPrograms()];
  const names = ["teams", "mail", "telegram"];
  const ports = await freePorts(names.length);
  const key = `whsec_${Buffer.alloc(32, 3).toString("base64")}`;
  await writeFile(join(directory, "key"), key);
  const channelOf = (name: string, i: number) =>
    `[channel.${name}]\nkind = "webhook"\nurl = "http://127.0.0.1:${ports[i]}/"\nsecret_file = "${directory}/key"\ncontent = "full"\n`;
  const service = await startService({
    settings:
      `public_url = "https://gate.example"\n${names.map(channelOf).join("")}${unconfined}` +
      `[[notify]]\nchannels = ${JSON.stringify(names)}\napprove = true\n` +
      '[[token]]\nid = "bot"\nroles = ["relay"]\nvalue = "relay-token-for-tests"\n',
  });
  const ann = (await signIn(service, "Ann")).credential?.personId ?? "";
  const shared = {
    ...{ TOOLGATE_KEY: key, TEAMS_URL: `${vendors.url}/teams`, TELEGRAM_URL: vendors.url, SMTP_URL: mail.url },
    ...{ CHAT: "-42", PEOPLE: JSON.stringify({ 111: ann }), CHANNEL: "telegram", MAIL_FROM: "gate@corp.example" },
    ...{ MAIL_TO: "ops@corp.example", NODE_EXTRA_CA_CERTS: made.ca.certFile },
    ...{ TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "relay-token-for-tests" },
  };
  await Promise.all(
    names.map((name, i) => startProgram(directory, `${name}.mjs`, { ...shared, PORT: String(ports[i]) })),
  );
  expect([vendors.of("teams"), vendors.of("sendMessage"), mail.mails]).toEqual([[], [], []]);

  const agent = connect(service, "caller");
  const call = { sessionId: await agent.newSession(), callId: "c1", tool: "bash" };
  const done = agent.tools.callTool({ ...call, input: { command: "echo see https://evil.example" } });
  done.catch(() => undefined);
  const waits = { timeout: 30_000 };
  await expect
    .poll(() => [vendors.of("teams"), vendors.of("sendMessage"), mail.mails].map(({ length }) => length), waits)
    .toEqual([1, 1, 1]);
  const [sent] = vendors.of("sendMessage") as [{ text: string; reply_markup: z.infer<typeof keyboard> }];
  const [open, reject, approve] = sent.reply_markup.inline_keyboard.flat();
  expect([sent.text, open, reject, approve]).toMatchObject([
    expect.stringContaining("build asks: bash\ntool: bash\ncommand: echo see https://evil.example"),
    { url: expect.stringMatching(/^https:\/\/gate\.example\/r\/per_/) },
    { text: "Reject" },
    { text: "Approve once" },
  ]);
  const opened = mail.mails[0]?.text ?? "";
  expect(mail.mails[0]).toMatchObject({ secure: true, user: "gate" });
  expect(opened).toMatch(/^Auto-Submitted: auto-generated$/m);
  expect(opened).toMatch(/^Subject: build asks: bash$/m);
  expect(opened).toContain("https://gate.example/r/per_");
  expect(opened).not.toContain("https://evil.example");
  expect(JSON.stringify(vendors.of("teams"))).toContain("build asks: bash");

  const [, permissionId = ""] = /\/r\/(per_[\w-]+)/.exec(opened) ?? [];
  const { permissions } = connect(service, "approver");
  const settledOf = async () => (await permissions.getPermission({ permissionId })).settled;
  vendors.press(222, `a:${permissionId}`);
  vendors.press(111, "a:per_other");
  const answered = () => vendors.of("answerCallbackQuery").map(({ text }) => text);
  await expect.poll(answered, waits).toEqual(["Your account belongs to no person here", "Open the link"]);
  expect(await settledOf()).toBeUndefined();
  vendors.press(111, `a:${permissionId}`);
  expect((await done).part?.state).toMatchObject({ case: "completed" });
  expect(await settledOf()).toMatchObject({ channel: "telegram", method: AnswerMethod.RELAY, person: { id: ann } });
  await expect.poll(answered, waits).toHaveLength(3);
  expect(answered()[2]).toBe("Done");

  const words = "once by Ann (at telegram)";
  await expect.poll(() => vendors.of("editMessageText"), waits).toMatchObject([{ message_id: 1, text: words }]);
  await expect.poll(() => JSON.stringify(vendors.of("teams")[1]), waits).toContain(words);
  await expect.poll(() => mail.mails.length, waits).toBe(2);
  const [, id] = /^Message-ID: (\S+)$/m.exec(opened) ?? [];
  expect(mail.mails[1]?.text).toContain(`In-Reply-To: ${id}\n`);
  expect(mail.mails[1]?.text).toContain(`Subject: ${words}\n`);
  const { channels } = await clientOf(ChannelService, service.url, "approver-token-for-tests").listChannels({});
  expect(channels.map(({ sent, updated, dead }) => [sent, updated, dead])).toEqual([
    [1, 1, 0],
    [1, 1, 0],
    [1, 1, 0],
  ]);
  expect(vendors.problems).toEqual([]);
});
