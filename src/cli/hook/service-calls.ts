import { createHash, randomBytes } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import type { ToolgateClient } from "../../client/connect.ts";
import { isLoopback } from "../../client/find-token.ts";
import { ServiceAwayError } from "../../client/verified-socket.ts";
import type { DelegatedCalls } from "../../dialect/delegate.ts";

/** Rpcs of a connector over connections that are opened as needed. */
export interface ServiceCalls extends DelegatedCalls {
  /** Returns the names of the tools that the service has. */
  toolNames(): Promise<readonly string[]>;
  close(): void;
}

/**
 * Creates the rpcs. `connect` verifies the service each time. A call that waits survives a restart of the service, so a request
 * about one is repeated for a while when the connection drops; any other failure is final.
 */
export function createServiceCalls(
  url: string,
  connect: () => Promise<ToolgateClient>,
  { endsAt }: { endsAt: number },
): ServiceCalls {
  let client: ToolgateClient | undefined;
  let waitsSince = Number.NaN;
  const connected = async () => {
    client ??= await connect();
    return client;
  };
  const drop = () => {
    client?.close();
    client = undefined;
  };

  async function beginOnce(request: Parameters<DelegatedCalls["begin"]>[0]) {
    const removeNonce = isLoopback(url) ? writeNonce(request) : undefined;
    try {
      const { tools } = await connected();
      const timeoutMs = (request.waitMs ?? 0) + answerMs;
      return await tools.beginCall({ ...request, ...(removeNonce && { noncePath: removeNonce.path }) }, { timeoutMs });
    } finally {
      removeNonce?.remove();
    }
  }

  return {
    async begin(request) {
      for (;;) {
        try {
          const response = await beginOnce(request);
          if (response.outcome.case === "waiting") waitsSince = performance.now();
          return response;
        } catch (error) {
          drop();
          const retriesUntil = Math.min(endsAt, waitsSince + (request.waitMs ?? 0) + maxOutageMs);
          if (!isOutage(error) || !(performance.now() + retryMs < retriesUntil)) throw error;
          await setTimeout(retryMs);
        }
      }
    },
    finish: async (request) => (await connected()).tools.finishCall(request),
    toolNames: async () => (await (await connected()).tools.listTools({})).tools.map(({ name }) => name),
    close: drop,
  };
}

/** Checks whether the service is away: it stops, starts, or the connection ended. */
function isOutage(error: unknown): boolean {
  if (error instanceof ConnectError) return error.code === Code.Unavailable || error.code === Code.Aborted;
  return error instanceof ServiceAwayError;
}

/** Writes the file that proves to the service that both see the same files, see BeginCallRequest.nonce_path. */
function writeNonce({ cwd = "", kind = "", foreignSession = "" }: Parameters<DelegatedCalls["begin"]>[0]) {
  const nonce = randomBytes(16).toString("hex");
  const path = join(cwd, `.toolgate-nonce-${nonce}`);
  const remove = () => rmSync(path, { force: true });
  const content = createHash("sha256").update(`${kind}\n${foreignSession}\n${nonce}`).digest("hex");
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
