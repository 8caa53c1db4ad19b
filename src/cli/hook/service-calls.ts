import { closeSync, openSync, readSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { readDecision } from "../../agents/hooks/decision-json.ts";
import { AlreadyBegunError, type DelegatedCalls } from "../../agents/hooks/delegate.ts";
import { isLoopback } from "../../client/find-token.ts";
import { ServiceAwayError } from "../../client/verified-socket.ts";
import { sha256Hex } from "../../core/sha256.ts";
import { RefusedRequest, type SendRequest } from "./send-request.ts";

/** Rpcs of a connector, each over a new connection. */
export interface ServiceCalls extends DelegatedCalls {
  /** Returns the names of the tools that the service has. */
  toolNames(): Promise<readonly string[]>;
}

/**
 * Creates the rpcs. A call that waits or runs survives a restart of the service, so a request about one is repeated for a while when
 * the connection drops; any other failure is final.
 */
export function createServiceCalls(url: string, send: SendRequest, { endsAt }: { endsAt: number }): ServiceCalls {
  let waitsSince = Number.NaN;

  async function beginOnce(request: Parameters<DelegatedCalls["begin"]>[0]) {
    const waitMs = request.waitMs ?? 0;
    // The first request accepts the call; the service remembers for the others that it sees the same files.
    const nonce = waitMs === 0 && isLoopback(url) ? writeNonce(request) : undefined;
    try {
      const message = { ...(request as JsonObject), ...(nonce && { noncePath: nonce.path }) };
      return { outcome: readDecision(await send("BeginCall", message, waitMs + answerMs)) ?? { case: undefined } };
    } catch (error) {
      if (error instanceof RefusedRequest && error.reason === "ALREADY_BEGUN")
        throw new AlreadyBegunError(error.message);
      throw error;
    } finally {
      nonce?.remove();
    }
  }

  return {
    async begin(request) {
      // The repeats get the assignment, too, if the connection dropped after the call began.
      const named = { ...located(request), retryKey: randomDigits() };
      const response = await acrossOutages(
        () => beginOnce(named),
        () => Math.min(endsAt, waitsSince + (request.waitMs ?? 0) + maxOutageMs),
      );
      if (response.outcome.case === "waiting") waitsSince = performance.now();
      return response;
    },
    async finish({ result, ...request }) {
      const { case: kind = "output", value = "" } = result ?? {};
      const until = Math.min(endsAt, performance.now() + maxOutageMs);
      const message = { ...(request as JsonObject), [kind]: value };
      return await acrossOutages(
        () => send("FinishCall", message, answerMs),
        () => until,
      );
    },
    async toolNames() {
      const names: string[] = [];
      let pageToken: JsonValue | undefined = "";
      do {
        const page: JsonObject = await send("ListTools", { pageToken }, answerMs);
        const tools = Array.isArray(page.tools) ? page.tools : [];
        names.push(...tools.map((tool) => String(Object(tool).name)));
        pageToken = page.nextPageToken;
      } while (typeof pageToken === "string" && pageToken !== "");
      return names;
    },
  };
}

/** Repeats a request while the service is away, until a time on the clock of `performance.now()`. */
async function acrossOutages<T>(request: () => Promise<T>, until: () => number): Promise<T> {
  for (;;) {
    try {
      return await request();
    } catch (error) {
      if (!isOutage(error) || !(performance.now() + retryMs < until())) throw error;
      await setTimeout(retryMs);
    }
  }
}

/** Checks whether the service is away: it stops, starts, or the connection ended. */
function isOutage(error: unknown): boolean {
  if (error instanceof RefusedRequest) return error.code === "unavailable" || error.code === "aborted";
  return error instanceof ServiceAwayError;
}

/** Resolves links in the directory: the service compares it with the one that it resolves itself. */
function located(request: Parameters<DelegatedCalls["begin"]>[0]) {
  try {
    return { ...request, cwd: realpathSync.native(request.cwd ?? "") };
  } catch {
    return request;
  }
}

/** Returns 128 random bits from the system, as hexadecimal digits. */
function randomDigits(): string {
  const bytes = Buffer.alloc(16);
  const descriptor = openSync("/dev/urandom", "r");
  try {
    if (readSync(descriptor, bytes) !== bytes.length) throw new Error("/dev/urandom is cut");
  } finally {
    closeSync(descriptor);
  }
  return bytes.toString("hex");
}

/** Writes the file that proves to the service that both see the same files, see BeginCallRequest.nonce_path. */
function writeNonce({ cwd = "", kind = "", foreignSession = "" }: Parameters<DelegatedCalls["begin"]>[0]) {
  const nonce = randomDigits();
  const path = join(cwd, `.toolgate-nonce-${nonce}`);
  const remove = () => rmSync(path, { force: true });
  const content = sha256Hex(`${kind}\n${foreignSession}\n${nonce}`);
  try {
    // The service may run as another user.
    writeFileSync(path, content, { flag: "wx", mode: 0o644 });
  } catch {
    // Without the file paths are judged as text only.
    return undefined;
  }
  return { path, remove };
}

/** Time that the service may take to answer, in addition to the wait. */
const answerMs = 10_000;
const retryMs = 500;
const maxOutageMs = 30_000;
