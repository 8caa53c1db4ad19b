import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../core/request-error.ts";
import { agreeOnClock, isClockRefusal } from "./clock.ts";
import type { Connection } from "./connection.ts";
import { isVerified, verifyContents } from "./contents.ts";
import type { Reply } from "./reply.ts";

/** Default time for which a command is retried. */
export const patienceMs = 1_000;

/** Sends a repeatable command, twice at least and until the time is over; refuses with STORE_UNAVAILABLE after that. */
export async function attemptCommand(
  connection: Connection,
  work: () => Promise<Reply>,
  patience = patienceMs,
): Promise<Reply> {
  const deadline = performance.now() + patience;
  const { raises } = connection;
  for (let failures = 0, before = connection.storeId; ; failures++) {
    if (connection.isClosed) throw unavailable("it was closed");
    await untilVerified(connection, Math.max(deadline, performance.now() + patienceMs));
    if (failures > 0 && before !== connection.storeId) throw unavailable("it lost its contents");
    // Who asked has compared the store id of before.
    if (raises !== connection.raises) throw unavailable("a failover may have lost a part of its contents");
    before = connection.storeId;
    try {
      return await work();
    } catch (error) {
      if (isDefect(error)) throw error;
      noteRefusal(connection, error);
      if (isClockRefusal(error)) await agreeOnClock(connection).catch(() => {});
      if (failures > 0 && performance.now() >= deadline) throw unavailable(error);
      await pause();
    }
  }
}

/** Waits for a lost connection to be ready and verified again. */
async function untilVerified(connection: Connection, deadline: number): Promise<void> {
  if (isVerified(connection)) return;
  while (!connection.isClosed && performance.now() < deadline) {
    if (connection.client.status === "ready")
      await Promise.race([verifyContents(connection).catch(() => {}), late(verifyMs)]);
    if (isVerified(connection)) return;
    await pause();
  }
  throw unavailable("there is no connection to Redis");
}

const late = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms).unref());
/** Waits before the next attempt. */
const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
/** Time for a verification, which takes as long as failovers follow each other. Replicas agree on one in up to 5 s. */
const verifyMs = 10_000;

/** Returns true for a defect in a script or command, which a retry cannot cure. */
const isDefect = (error: unknown) =>
  error instanceof Error && error.name === "ReplyError" && /^(ERR|WRONGTYPE)/.test(error.message);

/** Logs the refusal of a write by a Redis that has reached maxmemory. */
export function noteRefusal({ fullness }: Connection, error: unknown): void {
  if (isFull(error)) fullness.failed(error);
}

/** Returns true for the refusal of a write by a Redis that has reached maxmemory. */
const isFull = (error: unknown): error is Error => error instanceof Error && error.message.startsWith("OOM ");

/** Describes a failure, without the script and line in which it occurred. */
function causeOf(cause: unknown): string {
  if (isFull(cause)) return "Redis has reached its maxmemory";
  return (cause instanceof Error ? cause.message : String(cause)).replace(/ script: [0-9a-f]+, on .*$/s, "");
}

/** Refuses with STORE_UNAVAILABLE after a failure of Redis or of the connection. */
function unavailable(cause: unknown): RequestError {
  const fact = causeOf(cause);
  return new RequestError(
    ErrorReason.STORE_UNAVAILABLE,
    `the store is not available (${fact}): try again with the same ids`,
    {},
    { cause },
  );
}
