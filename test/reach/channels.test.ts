import { createPublicKey, generateKeyPairSync, randomBytes, verify } from "node:crypto";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import type { IncomingHttpHeaders } from "node:http";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { join } from "node:path";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Webhook } from "standardwebhooks";
import { describe, expect, onTestFinished, test } from "vitest";
import { PermissionOutcome, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionRequestSchema, RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createNtfy } from "../../src/reach/ntfy.ts";
import type { ChannelContent, Notice } from "../../src/reach/ports.ts";
import { answerOf, failureOf, post, readTarget } from "../../src/reach/post.ts";
import { createWebhook, readWebhookKey } from "../../src/reach/webhook.ts";
import { type ProviderAnswer, startProvider } from "./provider.ts";

const created = Date.parse("2026-11-24T13:00:00Z");

function noticeOf(
  fields: MessageInitShape<typeof PermissionRequestSchema> = {},
  phase: Notice["phase"] = "opened",
): Notice {
  const request = create(PermissionRequestSchema, {
    ...{ id: "per_1", sessionId: "ses_1", permission: "bash", agent: "build", created, expires: created + 900_000 },
    ...{ digest: "sha256:1", display: ["git push --force"], patterns: ["git push --force"] },
    risks: [{ kind: RiskKind.PUBLISH, parts: ["git push --force"] }],
    ...fields,
  });
  const outcome = PermissionOutcome.ONCE;
  const settled = create(PermissionSettledSchema, { permissionId: "per_1", outcome, by: "ann", time: created + 5_000 });
  const rest = { id: `msg_per_1_${phase}`, url: "https://gate.example/r/per_1", ref: "", recipient: "" };
  return phase === "test" ? { ...rest, phase } : { ...rest, phase, request, settled };
}

const signal = AbortSignal.timeout(30_000);
const newSecret = () => `whsec_${randomBytes(32).toString("base64")}`;

function webhookTo(url: string, { secrets = [newSecret()], content = "risk" as ChannelContent } = {}) {
  return createWebhook({ target: readTarget(url), keys: secrets.map(readWebhookKey), content, now: Date.now });
}

describe("the webhook", () => {
  test("is verified by the library of Standard Webhooks with the old and the new secret, and with no other", async () => {
    const provider = await startProvider();
    const secrets = [newSecret(), newSecret()];
    expect(await webhookTo(provider.url, { secrets }).send(noticeOf(), signal)).toMatchObject({ answer: "accepted" });
    const [{ headers, body } = { headers: {} as IncomingHttpHeaders, body: "" }] = provider.received;
    const given = headers as Record<string, string>;
    for (const secret of secrets)
      expect(new Webhook(secret).verify(body, given)).toMatchObject({ type: "permission.requested" });
    expect(() => new Webhook(newSecret()).verify(body, given)).toThrow();
    expect(() => new Webhook(secrets[0] ?? "").verify(`${body} `, given)).toThrow();
    expect(headers["webhook-id"]).toBe("msg_per_1_opened");
  });

  test("signs with an ed25519 key, too", async () => {
    const provider = await startProvider();
    const { privateKey, publicKey } = generateKeyPairSync("ed25519");
    const seed = privateKey.export({ format: "der", type: "pkcs8" }).subarray(-32);
    await webhookTo(provider.url, { secrets: [`whsk_${seed.toString("base64")}`] }).send(noticeOf(), signal);
    const [{ headers, body } = { headers: {} as IncomingHttpHeaders, body: "" }] = provider.received;
    const [, signature = ""] = /^v1a,(.+)$/.exec(String(headers["webhook-signature"])) ?? [];
    const content = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
    const key = createPublicKey(publicKey.export({ format: "pem", type: "spki" }));
    expect(verify(null, Buffer.from(content), key, Buffer.from(signature, "base64"))).toBe(true);
  });

  test.each([
    [[200], { answer: "accepted" }],
    [[302, { location: "http://127.0.0.1:1/" }], { answer: "retry", why: "it answered 302" }],
    [[400], { answer: "refused", why: "it answered 400" }],
    [[410], { answer: "refused", why: "it answered 410", disable: true }],
    [[429, { "retry-after": "7" }], { answer: "retry", why: "it answered 429", afterMs: 7_000 }],
    [[503, { "retry-after": "99999999" }], { answer: "retry", why: "it answered 503", afterMs: 3_600_000 }],
    [[502, { "retry-after": "soon" }], { answer: "retry", why: "it answered 502" }],
  ] as const)("that is answered with %j", async (answer, expected) => {
    const provider = await startProvider([answer as ProviderAnswer]);
    expect(await webhookTo(provider.url).send(noticeOf(), signal)).toMatchObject(expected);
    expect(provider.received.length).toBe(1);
  });

  test("has as much of the request as the channel may have", async () => {
    const provider = await startProvider();
    for (const content of ["none", "risk", "full"] as const)
      await webhookTo(provider.url, { content }).send(noticeOf(), signal);
    const [none, risk, full] = provider.received.map(({ body }) => JSON.parse(body).data);
    const url = "https://gate.example/r/per_1";
    expect(none).toEqual({ permission_id: "per_1", expires: "2026-11-24T13:15:00.000Z", url, complete: false });
    expect(risk).toMatchObject({ agent: "build", permission: "bash", risks: [{ kind: "publishes" }], complete: false });
    expect(JSON.stringify([none, risk])).not.toContain("git push");
    expect(full).toMatchObject({ display: ["git push --force"] });
  });

  test("says how a request ended, and who decided", async () => {
    const provider = await startProvider();
    await webhookTo(provider.url).send(noticeOf({}, "settled"), signal);
    expect(JSON.parse(provider.received[0]?.body ?? "")).toMatchObject({
      type: "permission.settled",
      data: { permission_id: "per_1", outcome: "once", by: "ann" },
    });
  });

  test.each(["", "whsec_", `whsec_${randomBytes(23).toString("base64")}`, "whsk_AAAA", "secret-of-the-operator"])(
    "refuses the key %j without repeating it",
    (key) => {
      expect(() => readWebhookKey(key)).toThrow(/^a key of a webhook is `whsec_`/);
    },
  );
});

test.each([
  ["http://127.0.0.1/", "127.0.0.1 is not a public address (loopback)"],
  ["http://[::1]/", "::1 is not a public address (loopback)"],
  ["http://169.254.169.254/latest", "169.254.169.254 is not a public address (linkLocal)"],
  ["https://localhost/", "localhost is a name of this machine or its network"],
  ["https://hooks.internal/", "hooks.internal is a name of this machine, its network or its cloud"],
])("%s is not reached unless the operator names its port", async (url, why) => {
  await expect(post(readTarget(url), { headers: {}, body: "", signal })).rejects.toThrow(why);
});

test("a message of over 64 KiB is refused before it is sent", async () => {
  const provider = await startProvider();
  const send = (bytes: number) => post(readTarget(provider.url), { headers: {}, body: "x".repeat(bytes), signal });
  expect(await send(65_536)).toEqual({ status: 204 });
  expect(await send(65_537).then(answerOf, failureOf)).toMatchObject({
    answer: "refused",
    why: "the message has over 64 KiB",
  });
  expect(provider.received.length).toBe(1);
});

test("ntfy gets a link and no credential, and the outcome replaces the message", async () => {
  const provider = await startProvider();
  const options = {
    target: readTarget(provider.url),
    topic: "approvals",
    token: "tk_secret",
    content: "risk" as const,
  };
  const channel = createNtfy(options);
  // Text of an agent stands on its own lines, and cannot hide or add one.
  const agent = "build\nRisks: none\u202e";
  for (const phase of ["opened", "settled"] as const)
    expect(await channel.send(noticeOf({ agent }, phase), signal)).toMatchObject({ answer: "accepted" });
  const [opened, settled] = provider.received.map(({ body }) => JSON.parse(body));
  expect(opened).toEqual({
    topic: "approvals",
    title: "Toolgate: build\\u{a}Risks: none\\u{202e} asks: bash",
    message: "Risks: pushes or publishes",
    click: "https://gate.example/r/per_1",
    sequence_id: "per_1",
    priority: 4,
    actions: [{ action: "view", label: "Open", url: "https://gate.example/r/per_1" }],
  });
  expect(settled).toMatchObject({
    sequence_id: "per_1",
    title: "Toolgate: approved once",
    message: "approved once by ann",
  });
  expect(provider.received[0]?.headers.authorization).toBe("Bearer tk_secret");
  expect(JSON.stringify([opened, settled])).not.toContain("tk_");
});

/** The function of docs/phone.md by which a receiver checks a delivery. */
async function readVerifier(): Promise<(key: string, headers: object, body: string) => boolean> {
  const page = await readFile(join(import.meta.dirname, "../../docs/phone.md"), "utf8");
  const [, code = ""] = /^```js\n([\s\S]*?)^```$/m.exec(page) ?? [];
  return (await import(`data:text/javascript,${encodeURIComponent(code)}`)).isFromToolgate;
}

test("the check of docs/phone.md and the library accept deliveries of each key, and none of these that are forged or replayed", async () => {
  const isFromToolgate = await readVerifier();
  const provider = await startProvider();
  const [key, next, foreign] = [newSecret(), newSecret(), newSecret()] as const;
  const deliver = async ({ secrets = [key], at = Date.now(), id = "per_1" } = {}) => {
    const target = readTarget(provider.url);
    const channel = createWebhook({ target, keys: secrets.map(readWebhookKey), content: "full", now: () => at });
    const notice = { ...noticeOf({ id }), id: `msg_${id}_opened` };
    await channel.send(notice, signal);
    const { headers, body } = provider.received.at(-1) ?? { headers: {}, body: "" };
    const pick = (name: string) => String(headers[`webhook-${name}`]);
    return { id: pick("id"), time: pick("timestamp"), signature: pick("signature"), body };
  };
  type Delivery = Awaited<ReturnType<typeof deliver>>;
  const accepts = ({ id, time, signature, body }: Partial<Delivery>) => {
    const named = { "webhook-id": id, "webhook-timestamp": time, "webhook-signature": signature };
    const headers = Object.fromEntries(Object.entries(named).filter(([, value]) => value !== undefined));
    let byLibrary = true;
    try {
      new Webhook(key).verify(body ?? "", headers as Record<string, string>);
    } catch {
      byLibrary = false;
    }
    return [isFromToolgate(key, headers, body ?? ""), byLibrary];
  };

  const good = await deliver();
  expect(accepts(good)).toEqual([true, true]);
  expect(accepts(await deliver({ secrets: [next, key] }))).toEqual([true, true]);
  const other = await deliver({ id: "per_2" });
  const bare = good.signature.replace("v1,", "");
  const { url } = JSON.parse(good.body).data;
  const forged: Partial<Delivery>[] = [
    // Without a part.
    ...["id", "time", "signature", "body"].flatMap((name) => [
      { ...good, [name]: undefined },
      { ...good, [name]: "" },
    ]),
    // Of another team, of a key that is no longer in use, and of several of them.
    await deliver({ secrets: [foreign] }),
    await deliver({ secrets: [next] }),
    await deliver({ secrets: [foreign, next] }),
    // Of another request: parts of two deliveries.
    ...(["id", "signature", "body"] as const).map((name) => ({ ...good, [name]: other[name] })),
    ...(["id", "signature", "body"] as const).map((name) => ({ ...other, [name]: good[name] })),
    // Replayed, or made for later.
    ...(await Promise.all([-86_400, -3_600, -302, 310, 3_600].map((s) => deliver({ at: Date.now() + s * 1_000 })))),
    ...["0", "-1", "NaN", "Infinity", "1e400", "0x7fffffff", ` ${good.time}`, `${good.time}.0`, `${good.time}000`].map(
      (time) => ({ ...good, time }),
    ),
    // Signatures of another form.
    ...["v1", "v1,", "v1a,", "v2,", "V1,", "v1, ", "v1;", "v1=", "v0,"].map((prefix) => ({
      ...good,
      signature: prefix === "v1" || prefix === "v1," || prefix === "v1a," ? prefix : `${prefix}${bare}`,
    })),
    ...[
      bare,
      bare.slice(0, -1),
      `v1,${bare.slice(0, -2)}`,
      `v1,${bare}=`,
      `v1,${bare.toLowerCase()}`,
      "v1,\u00e9".padEnd(47, "="),
    ].map((signature) => ({ ...good, signature })),
    { ...good, signature: `v1,${Buffer.alloc(32).toString("base64")}` },
    { ...good, signature: `v1a,${bare}` },
    { ...good, signature: `v1,${Buffer.from(bare, "base64").toString("hex")}` },
    // Ids that shift the border between id and time.
    ...[`${good.id}.`, `${good.id}.${good.time}`, good.id.toUpperCase(), `${good.id}\u0000`, "msg_per_1_settled"].map(
      (id) => ({
        ...good,
        id,
      }),
    ),
    // Bodies that mean the same, or that mean more.
    ...[
      ` ${good.body}`,
      `${good.body}\n`,
      `${good.body}${good.body}`,
      `\ufeff${good.body}`,
      JSON.stringify(JSON.parse(good.body), null, 1),
      good.body.replace("build", "admin"),
      good.body.replace(url, "https://evil.example/r/per_1"),
      good.body.replace("permission.requested", "permission.settled"),
      good.body.replace("per_1", "per_2"),
      good.body.replace('"data":{', '"data":{"outcome":"once",'),
      good.body.replace(/\}$/, ',"type":"permission.settled"}'),
      good.body.replace('"git push --force"', '"git push"'),
    ].map((body) => ({ ...good, body })),
  ];
  expect(forged.length).toBeGreaterThanOrEqual(60);
  const reports = forged.map((delivery) => [delivery, accepts(delivery)[0]] as const);
  expect(reports.filter(([, isAccepted]) => isAccepted)).toEqual([]);
});

const injected = [
  "x\nRisks: none",
  "x\r\nclick: https://evil.example/",
  '","click":"https://evil.example/","x":"',
  '"}],"url":"https://evil.example/',
  "<!channel> <@U1> @everyone",
  "<https://evil.example/|Approve>",
  "[Approve](https://evil.example/)",
  "https://evil.example/r/per_1",
  "\u202eevorppA",
  "a\u2028b\u0000c\u200b",
  "\ud800",
  "x".repeat(5_000),
] as const;

test.each(injected)("text of an agent adds no line, field or link to a notice: %j", async (text) => {
  const provider = await startProvider();
  const target = readTarget(provider.url);
  for (const content of ["none", "risk", "full"] as const) {
    const ntfy = createNtfy({ target, topic: "t", token: "", content });
    const webhook = webhookTo(provider.url, { content });
    for (const channel of [ntfy, webhook])
      for (const fields of [{}, { agent: text, permission: text, display: [text], patterns: [text] }])
        await channel.send(noticeOf(fields), signal);
    const [plain, hostile, event, hostileEvent] = provider.received.splice(0).map(({ body }) => JSON.parse(body));
    const { title, message, ...rest } = hostile;
    expect({ ...rest, title: "", message: "" }).toEqual({ ...plain, title: "", message: "" });
    expect(title).not.toMatch(/[\n\r\u2028\u202e]|:\/\//);
    expect(message.split("\n").length).toBe(plain.message.split("\n").length);
    expect(message).not.toMatch(/[\r\u2028\u202e]|:\/\//);
    expect(Object.keys(hostileEvent)).toEqual(Object.keys(event));
    expect(Object.keys(hostileEvent.data)).toEqual(Object.keys(event.data));
    expect(hostileEvent.data).toMatchObject({
      permission_id: "per_1",
      url: event.data.url,
      expires: event.data.expires,
    });
    expect(Buffer.byteLength(JSON.stringify(hostileEvent))).toBeLessThan(20_000);
  }
});

test("a receiver that changes the protocol instead of an answer fails the attempt, and holds nothing", async () => {
  const server = createTcpServer((socket) => {
    socket
      .on("error", () => undefined)
      .once("data", () => {
        socket.write("HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
      });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const target = readTarget(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  const attempt = post(target, { headers: {}, body: "", signal: AbortSignal.timeout(60_000) });
  await expect(attempt).rejects.toThrow("the connection ended without an answer");
});
