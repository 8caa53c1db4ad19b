import { setTimeout as delay } from "node:timers/promises";
import packageJson from "../../../package.json" with { type: "json" };
import { earlierFormatRuns, laterFormat } from "../errors.ts";
import { masters } from "./client.ts";
import { type Connection, encodeStep, evaluateScript } from "./connection.ts";
import { addressOf } from "./replication.ts";
import { number, replyList, text } from "./reply.ts";

/**
 * Number of the format of what replicas write to Redis. All versions with one number share a store. It is raised where an earlier
 * version would damage or leave what this one writes. Format 1 had no number: its replicas hold a policy as STRING, and fail at a HASH.
 */
export const storeFormat = 2;

/**
 * Raises the format of the store at the start of a program. Waits for the announcement of replicas of an earlier format to lapse, and
 * refuses to start while one of them renews it.
 */
export async function agreeOnFormat(connection: Connection): Promise<void> {
  const { client, log } = connection;
  let before: number | undefined;
  for (;;) {
    const { format, heldMs } = await readFormat(connection);
    if (heldMs === 0) return;
    if (before === undefined)
      log.warn(
        `replicas of an earlier Toolgate (format ${format}) run on this Redis, or ended less than 30 s ago: waiting for the end of their announcement`,
        { reason: `${heldMs} ms left` },
      );
    else if (heldMs > before) throw earlierFormatRuns(placeOf(client), { format, known: storeFormat });
    before = heldMs;
    await delay(Math.min(heldMs, pauseMs));
  }
}

/** Refuses a store whose format is not the one of this replica: one that was away may find a later one. */
export async function checkFormat(connection: Connection): Promise<void> {
  const { format, heldMs } = await readFormat(connection);
  if (heldMs > 0) throw earlierFormatRuns(placeOf(connection.client), { format, known: storeFormat });
}

/** Reads the format, or sets it where there is none; refuses a later one. */
async function readFormat(connection: Connection): Promise<{ format: number; heldMs: number }> {
  const { client, keys } = connection;
  const names = { format: keys.format, policy: keys.policy };
  const step = encodeStep(names, { format: storeFormat, version: packageJson.version }, {});
  const [format, version, heldMs] = replyList(await evaluateScript(connection, "agree_on_format", step));
  const found = { format: number(format), version: text(version) };
  if (found.format > storeFormat) throw laterFormat(placeOf(client), found, storeFormat);
  return { ...found, heldMs: number(heldMs) };
}

const placeOf = (client: Connection["client"]) => `the Redis at ${masters(client).map(addressOf).join(", ")}`;

/** Pause between two looks at the announcement, which its replicas renew each 10 s. */
const pauseMs = 1_000;
