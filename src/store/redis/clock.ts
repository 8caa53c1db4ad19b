import { Redis } from "ioredis";
import { jumpInWords, maxJumpMs, minJumpMs, sleepOfMachine } from "../retention.ts";
import { masters } from "./client.ts";
import { type Connection, encodeStep, evaluateScript } from "./connection.ts";
import { addressOf } from "./copies.ts";
import { slotOf } from "./keys.ts";
import { number, replyList } from "./reply.ts";

/** Returns the time of the store, in ms since the epoch, estimated: no guard depends on it. */
export const storeTime = ({ time }: Connection): number => Math.floor(performance.now() + (time.offsetMs ?? 0));

/** Returns what a step needs to know the time at the server of a key, and to refuse where that is uncertain. */
export function timingOf(connection: Connection, key: string) {
  return { behind: behindAt(connection, key), near: storeTime(connection), minJumpMs };
}

/** Measures the clocks of the masters, and agrees with the other replicas on the time of the store. Concurrent callers share that. */
export function agreeOnClock(connection: Connection): Promise<void> {
  const { time } = connection;
  time.agreeing ??= measure(connection).finally(() => {
    time.agreeing = undefined;
  });
  return time.agreeing;
}

async function measure(connection: Connection): Promise<void> {
  const { time } = connection;
  const isFirst = time.offsetMs === undefined;
  let offsetMs: number | undefined;
  const slept = sleepOfMachine();
  const sleptSince = Math.abs(slept - time.sleptMs) > minSleepMs ? slept - time.sleptMs : 0;
  for (const node of masters(connection.client)) {
    const before = performance.now();
    const [seconds, micros] = await node.time();
    const here = (before + performance.now()) / 2;
    const raw = Number(seconds) * 1_000 + Number(micros) / 1_000;
    const near = time.offsetMs === undefined ? undefined : here + time.offsetMs + sleptSince;
    const server = nameOf(connection, node);
    const agreed = connection.replica === undefined ? unshared : await agreeAt(connection, server, raw, near);
    if (isFirst && agreed.behind !== 0 && agreed.jump === 0) time.confirmed.add(server);
    time.behind.set(server, agreed.behind);
    time.turns = agreed.turns;
    offsetMs ??= raw - agreed.behind - here;
  }
  time.offsetMs = offsetMs;
  time.sleptMs = slept;
}

/** Agreement of a program that acknowledges nothing: it takes Redis' clock as it is. */
const unshared = { behind: 0, jump: 0, turns: 0 };

async function agreeAt(connection: Connection, server: string, raw: number, near: number | undefined) {
  const { keys, replica } = connection;
  const values = {
    ...{ replica, server, raw: Math.round(raw), clock: Math.round(raw), minJumpMs, maxJumpMs },
    ...(near !== undefined && { near: Math.round(near) }),
  };
  const step = encodeStep({ clock: keys.clock }, values, {});
  const [behind, jump, turns] = replyList(await evaluateScript(connection, "agree_on_clock", step)).map(number);
  const agreed = { behind: behind ?? 0, jump: jump ?? 0, turns: turns ?? 0 };
  if (agreed.jump !== 0) logJump(connection, server, agreed);
  return agreed;
}

function logJump({ log }: Connection, server: string, { behind, jump }: { behind: number; jump: number }): void {
  const fact = `the clock of Redis at ${server} jumped by ${jumpInWords(jump)}`;
  if (Math.abs(behind) <= minJumpMs) log.warn(`${fact} and is right again`);
  else if (Math.abs(behind) <= maxJumpMs)
    log.warn(
      `${fact}: the time of the store goes on from before, and reaches that clock gradually; nothing expires at once`,
    );
  else
    log.error(
      `${fact}: the time of the store goes on from before, so nothing expires and nothing is removed because of it. If the time is right now, stop all replicas, then start them again; otherwise correct the clock`,
    );
}

/** Returns how far the time of the store is behind the clock of the server of a key, in ms. */
export const behindAt = (connection: Connection, key: string): number =>
  connection.time.behind.get(serverOf(connection, key)) ?? 0;

/** Returns the largest jump that an earlier start found and that is still held, in ms; 0 if there is none. */
export function confirmedJump({ time }: Connection): number {
  const held = [...time.confirmed].map((server) => time.behind.get(server) ?? 0);
  const largest = held.reduce((one, other) => (Math.abs(one) < Math.abs(other) ? other : one), 0);
  return Math.abs(largest) > maxJumpMs ? largest : 0;
}

/** Returns true if no other replica measures the clock. */
export async function isAlone(connection: Connection): Promise<boolean> {
  const { time } = connection;
  const { turns } = time;
  await new Promise((resolve) => setTimeout(resolve, aloneMs));
  await agreeOnClock(connection);
  return time.turns === turns;
}

/** Takes the clock of each server as the time of the store, whatever was held before. */
export async function adoptClock(connection: Connection): Promise<void> {
  const { keys, time } = connection;
  await evaluateScript(connection, "adopt_clock", encodeStep({ clock: keys.clock }, {}, {}));
  time.offsetMs = undefined;
  time.confirmed.clear();
  await agreeOnClock(connection);
}

/** Names the server that has a key. */
function serverOf({ client }: Connection, key: string): string {
  return client instanceof Redis ? addressOf(client) : (client.slots[slotOf(key)]?.[0] ?? "");
}

const nameOf = ({ client }: Connection, node: Redis): string =>
  client instanceof Redis ? addressOf(node) : `${node.options.host}:${node.options.port}`;

/** Returns true for the refusal of a step at a server whose clock is not as expected. */
export const isClockRefusal = (error: unknown): boolean => error instanceof Error && error.message.startsWith("CLOCK ");

/** Another replica measures the clock within this time. */
const aloneMs = 7_000;
/** A shorter sleep may be rounding of the uptime. */
const minSleepMs = 2_000;
