import { createHash, randomBytes } from "node:crypto";
import { realpathSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { AlreadyBegunError, type DelegatedCalls } from "../../agents/hooks/delegate.ts";
import type { ToolgateClient } from "../../client/connect.ts";
import { isLoopback } from "../../client/find-token.ts";
import { ServiceAwayError } from "../../client/verified-socket.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { errorInfoOf } from "../failure/failure.ts";

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
    const waitMs = request.waitMs ?? 0;
    // The first request accepts the call; the service remembers for the others that it sees the same files.
    const nonce = waitMs === 0 && isLoopback(url) ? writeNonce(request) : undefined;
    try {
      const { tools } = await connected();
      return await tools.beginCall(
        { ...request, ...(nonce && { noncePath: nonce.path }) },
        { timeoutMs: waitMs + answerMs },
      );
    } catch (error) {
      throw errorInfoOf(error)?.reason === "ALREADY_BEGUN" ? new AlreadyBegunError(messageOf(error)) : error;
    } finally {
      nonce?.remove();
    }
  }

  return {
    async begin(request) {
      for (;;) {
        try {
          const response = await beginOnce(located(request));
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
    async toolNames() {
      const { tools } = await connected();
      const pages = await Array.fromAsync(pagesOf((page) => tools.listTools(page)));
      return pages.flatMap((page) => page.tools.map(({ name }) => name));
    },
    close: drop,
  };
}

function messageOf(error: unknown): string {
  return error instanceof ConnectError ? error.rawMessage : String(error);
}

/** Checks whether the service is away: it stops, starts, or the connection ended. */
function isOutage(error: unknown): boolean {
  if (error instanceof ConnectError) return error.code === Code.Unavailable || error.code === Code.Aborted;
  return error instanceof ServiceAwayError;
}

/** Resolves links in the directory: the service compares it with the one that it resolves itself. */
function located(request: Parameters<DelegatedCalls["begin"]>[0]) {
  try {
    return { ...request, cwd: realpathSync(request.cwd ?? "") };
  } catch {
    return request;
  }
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
