import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { createNoticeOutbox, type NoticeOutboxOptions } from "../../src/reach/outbox.ts";
import type { Channel, ChannelAnswer, Notice } from "../../src/reach/ports.ts";
import type { NotifyRule } from "../../src/reach/routing.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { addSession, answer, ask, callRef, fenceOf, openCall, owner, recordOf } from "../store/fixture.ts";

const ref = callRef();

/** A channel whose provider answers when a test lets it. */
function createFake(answers: readonly ChannelAnswer[] = []) {
  const sent: Notice[] = [];
  const waiting: (() => void)[] = [];
  let isStalled = false;
  const channel: Channel = {
    ...{ kind: "webhook", content: "risk" },
    async send(notice) {
      sent.push(notice);
      const given = answers[sent.length - 1] ?? { answer: "accepted" };
      if (isStalled) await new Promise<void>((resolve) => waiting.push(resolve));
      return given;
    },
  };
  const stall = () => {
    isStalled = true;
  };
  const go = () => {
    isStalled = false;
    for (const resume of waiting.splice(0)) resume();
  };
  return { channel, sent, stall, go };
}

const everything: NotifyRule = {
  ...{ permission: "*", risk: [], agent: "*", workspace: "*", channels: ["ops"], afterMs: 0, approve: false },
  to: { groups: [], people: [] },
};

/** Settings of a service; `devices` are the persons whom the channel `phones` reaches, all of the group `sre` but `prs_out`. */
interface Options extends Pick<Partial<NoticeOutboxOptions>, "rules" | "maxWaiting" | "maxPerSecond"> {
  answers?: readonly ChannelAnswer[];
  devices?: readonly string[];
}

async function start({ rules = [everything], answers = [], devices = [], ...limits }: Options = {}) {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-reach-"));
  let time = Date.now();
  const store = await openSqliteStore({ directory, clock: () => time });
  const fake = createFake(answers);
  const lines: string[] = [];
  const write = (message: string, fields?: object) => lines.push(`${message} ${JSON.stringify(fields)}`);
  const log = { debug: write, info: write, warn: write, error: write };
  const outboxOf = (replicaId: string) =>
    createNoticeOutbox({
      ...{ store: store.notices, rules, publicUrl: "https://gate.example", replicaId, log },
      ...{ now: () => time, ...limits },
      channels: new Map([
        ...["ops", "other"].map((name) => [name, fake.channel] as const),
        ["phones", { ...fake.channel, people: () => devices }],
      ]),
      isAddressed: (person, to) => to.groups.length === 0 || (to.groups.includes("sre") && person !== "prs_out"),
    });
  const outbox = outboxOf("replica_1");
  onTestFinished(async () => {
    fake.go();
    await outbox.close();
    await store.calls.close();
    await rm(directory, { recursive: true });
  });
  await addSession(store);
  const opened = { ...store, advance: () => undefined, reopen: async () => opened, close: async () => undefined };
  let count = 0;
  return {
    ...{ store, outbox, outboxOf, fake, lines },
    advance(ms: number) {
      time += ms;
    },
    /** Opens a request as a call does: its notices are in the same step. */
    async request(id: string) {
      const call = callRef(`call_${count++}`);
      await openCall(store, call);
      const record = await recordOf(opened, call);
      const asked = ask(call, id, opened);
      const notices = outbox.noticesOf(asked, "default");
      const step = { fence: { ...fenceOf(record), owner }, version: record.version, asks: [asked], withdraw: [] };
      await store.calls.openAsks({ ...step, notices, message: "", maxOpenAsks: 1_000 });
      outbox.opened(notices);
      return call;
    },
    settle: async (call: typeof ref, id: string) => store.permissions.settle(await answer(opened, call, id)),
    /** Waits until a fact about the provider or the log holds, while the outbox looks for due notices. */
    until: (fact: () => unknown) =>
      expect
        .poll(async () => {
          await outbox.tick();
          return fact();
        })
        .toBeTruthy(),
  };
}

test("a request is sent by the replica that opened it, without a claim, and its outcome follows", async () => {
  const { request, settle, fake, until, outbox } = await start();
  const call = await request("per_1");
  await expect.poll(() => fake.sent.length).toBe(1);
  expect(fake.sent[0]).toMatchObject({ id: "msg_per_1_opened", phase: "opened", url: "https://gate.example/r/per_1" });
  await settle(call, "per_1");
  await until(() => fake.sent.length === 2);
  expect(fake.sent[1]).toMatchObject({ id: "msg_per_1_settled", phase: "settled", settled: { by: "bob" } });
  await until(() => outbox.counts().get("ops")?.updated === 1);
  expect(outbox.counts().get("ops")).toMatchObject({ sent: 1, updated: 1, retried: 0, dead: 0 });
});

test("a provider that stalls holds four notices, and the others are sent once it answers", async () => {
  const { request, fake, until, store } = await start();
  fake.stall();
  for (let i = 0; i < 20; i++) await request(`per_${i}`);
  await expect.poll(() => fake.sent.length).toBe(4);
  expect((await store.notices.countNotices()).get("ops")).toMatchObject({ waiting: 20 });
  fake.go();
  await until(() => fake.sent.length === 20);
  expect(new Set(fake.sent.map(({ id }) => id)).size).toBe(20);
});

test("another replica takes over a notice once the lease of the one that stalls has ended", async () => {
  const { request, fake, outboxOf, advance } = await start();
  fake.stall();
  await request("per_1");
  await expect.poll(() => fake.sent.length).toBe(1);
  const other = outboxOf("replica_2");
  await other.tick();
  expect(fake.sent.length).toBe(1);
  advance(30_001);
  await other.tick();
  await expect.poll(() => fake.sent.length).toBe(2);
  fake.go();
  await other.close();
});

test("a failed attempt is repeated by the time of the store, as late as the provider asks, with the same id", async () => {
  const later: ChannelAnswer = { answer: "retry", why: "it answered 429", afterMs: 60_000 };
  const { request, fake, outbox, until, advance } = await start({ answers: [later] });
  await request("per_1");
  await until(() => outbox.counts().get("ops")?.retried === 1);
  advance(59_000);
  await outbox.tick();
  expect(fake.sent.length).toBe(1);
  advance(1_001);
  await until(() => fake.sent.length === 2);
  expect(fake.sent.map(({ id }) => id)).toEqual(["msg_per_1_opened", "msg_per_1_opened"]);
});

test("no attempt is planned for a time at which the request has ended", async () => {
  const never: ChannelAnswer = { answer: "retry", why: "it answered 503", afterMs: 3_600_000 };
  const { request, outbox, until, lines, advance, fake } = await start({ answers: [never] });
  await request("per_1");
  await until(() => outbox.counts().get("ops")?.dead === 1);
  expect(lines.join()).toContain("it answered 503, until the request ended");
  advance(3_700_000);
  await outbox.tick();
  expect(fake.sent.length).toBe(1);
});

test("a channel that answers 410 gets nothing more", async () => {
  const gone: ChannelAnswer = { answer: "refused", why: "it answered 410", disable: true };
  const { request, outbox, until, lines, fake } = await start({ answers: [gone] });
  await request("per_1");
  await until(() => outbox.counts().get("ops")?.dead === 1);
  expect(lines.join()).toContain("a channel takes no more notices");
  await request("per_2");
  await outbox.tick();
  expect(fake.sent.length).toBe(1);
});

test("a request that is answered before its notice is due reaches nobody", async () => {
  const { request, settle, outbox, advance, fake, store } = await start({
    rules: [{ ...everything, afterMs: 60_000 }],
  });
  const call = await request("per_1");
  await settle(call, "per_1");
  advance(60_001);
  await outbox.tick();
  expect(fake.sent).toEqual([]);
  expect(await store.notices.countNotices()).toEqual(new Map());
});

test("the first rule that fits a request decides, and none means that nobody is notified", async () => {
  const rules: NotifyRule[] = [
    { ...everything, risk: ["publishes"], channels: [] },
    { ...everything, permission: "edit" },
    { ...everything, agent: "ci*", channels: ["ops", "ops", "other"] },
  ];
  const { outbox, store } = await start({ rules });
  const opened = { ...store, advance: () => undefined, reopen: async () => opened, close: async () => undefined };
  const channelsOf = (fields: object) =>
    outbox.noticesOf({ ...ask(ref, "per_1", opened), ...fields }, "default").map(({ channel }) => channel);
  expect(channelsOf({ permission: "edit" })).toEqual(["ops"]);
  expect(channelsOf({ permission: "edit", risks: [{ kind: 4 }] })).toEqual([]);
  expect(channelsOf({ permission: "bash", agent: "ci-main" })).toEqual(["ops", "other"]);
  expect(channelsOf({ permission: "bash", agent: "build" })).toEqual([]);
});

test("a channel that addresses persons gets a notice for each of the audience, and the others one of the request", async () => {
  const to = { groups: ["sre"], people: [] };
  const { request, settle, fake, until, store } = await start({
    ...{ devices: ["prs_a", "prs_out", "prs_b"], rules: [{ ...everything, channels: ["ops", "phones"], to }] },
  });
  const call = await request("per_1");
  await until(() => fake.sent.length === 3);
  expect(fake.sent.map(({ id, recipient }) => [id, recipient])).toEqual([
    ["msg_per_1_opened", ""],
    ["msg_per_1_opened_prs_a", "prs_a"],
    ["msg_per_1_opened_prs_b", "prs_b"],
  ]);
  await settle(call, "per_1");
  await until(() => fake.sent.length === 6);
  await until(async () => (await store.notices.countNotices()).size === 0);
});

test("a request reaches eight recipients at most, and the others count as dead", async () => {
  const devices = Array.from({ length: 10 }, (_, index) => `prs_${index}`);
  const { request, fake, until, outbox, lines } = await start({
    ...{ devices, rules: [{ ...everything, channels: ["phones"] }] },
  });
  await request("per_1");
  await until(() => outbox.counts().get("phones")?.sent === 8);
  expect(fake.sent.length).toBe(8);
  expect(outbox.counts().get("phones")).toMatchObject({ sent: 8, dead: 2 });
  expect(lines.join()).toContain("8 recipients at most");
});

test("a replica makes no more attempts in a second than allowed, and the rest in the next ones", async () => {
  const { request, fake, until, outbox, advance } = await start({ maxPerSecond: 3 });
  for (let i = 0; i < 8; i++) await request(`per_${i}`);
  await until(() => fake.sent.length === 3);
  await outbox.tick();
  expect(fake.sent.length).toBe(3);
  advance(1_000);
  await until(() => fake.sent.length === 6);
  advance(1_000);
  await until(() => fake.sent.length === 8);
});

test("a queue that is full takes no more: what a request adds is dead, and counted, until it is shorter", async () => {
  const { request, fake, until, outbox, store } = await start({ maxWaiting: 6 });
  fake.stall();
  for (let i = 0; i < 8; i++) await request(`per_${i}`);
  await outbox.tick();
  expect(await outbox.queue()).toMatchObject({ waiting: 6 });
  const listed = await store.notices.listNotices();
  const dead = listed.filter(({ state }) => state === "dead").map(({ ask, why }) => `${ask}: ${why}`);
  expect(dead.toSorted()).toEqual(["per_6: 6 notices wait already", "per_7: 6 notices wait already"]);
  expect(outbox.counts().get("ops")).toMatchObject({ dead: 2 });
  fake.go();
  await until(() => fake.sent.length === 6);
  await until(async () => (await outbox.queue()).waiting === 0);
  await outbox.tick();
  await request("per_8");
  await until(() => fake.sent.length === 7);
});
