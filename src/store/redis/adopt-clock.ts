import { randomUUID } from "node:crypto";
import type { Logger } from "../../core/logger.ts";
import { postponed } from "../parts.ts";
import { jumpInWords } from "../retention.ts";
import { askOfDeadline } from "./asks.ts";
import { decodeAsked, encodeEvent } from "./events.ts";
import { type Keys, shards } from "./keys.ts";
import type { Link, StepBytes } from "./link.ts";
import type { Live } from "./live.ts";
import { pairs, texts } from "./reply.ts";

/**
 * Adopts the clock of Redis, if this is the start after the one that found its jump, and no other replica runs: an operator has looked
 * at it then. Open permission requests keep their remaining time, and so do leases: they move with the time of the store.
 */
export async function adoptConfirmedClock(context: { link: Link; keys: Keys; live: Live; log: Logger }): Promise<void> {
  const { link, keys, live, log } = context;
  const by = link.confirmedJump();
  if (by === 0 || !(await link.isAlone())) return;
  log.warn(
    `the clock of Redis is adopted: it is ${jumpInWords(by)} from the time of the store, as at the start before`,
  );
  const adoption = randomUUID();
  for (const root of await live.all()) await shiftTree(context, root, adoption);
  await link.adoptClock();
  // The times of the next checks may be far ahead now.
  for (let shard = 0; shard < shards; shard++) {
    const key = keys.live(shard);
    for (const entry of texts(await link.command("zrange", key, 0, -1)))
      await link.command("zadd", key, "XX", 0, entry);
  }
  live.forget();
}

async function shiftTree({ link, keys }: { link: Link; keys: Keys }, root: string, adoption: string): Promise<void> {
  const by = link.behindAt(root);
  const { tree, deadlines, leases, notices, noticeDue, asked, call } = keys.tree(root);
  const open = new Set(texts(await link.command("zrange", deadlines, 0, -1)).map(askOfDeadline));
  const calls = texts(await link.command("zrange", leases, 0, -1));
  const requests: StepBytes = {};
  for (const [id, stored] of pairs((await link.hashes(asked))[0])) {
    if (!open.has(id)) continue;
    const value = decodeAsked(stored);
    requests[`asked ${id}`] = encodeEvent(value.sessionId, { case: "permissionAsked", value: postponed(value, by) });
  }
  const names = Object.fromEntries(calls.map((name) => [`call ${name}`, call(name)]));
  const values = { adoption, by, calls, asks: [...open] };
  await link.run("shift_tree", { tree, deadlines, leases, notices, noticeDue, asked, ...names }, values, requests);
}
