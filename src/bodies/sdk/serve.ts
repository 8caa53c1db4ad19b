import { type ConnectOptions, findServer } from "../../client/find-server.ts";
import type { DefinedTool } from "../../tool/tool.ts";
import { runWorker } from "./run-worker.ts";
import { tokenStep, type WorkerFacts, workerHello } from "./worker-hello.ts";
import { createWorker, drainWorker } from "./worker-state.ts";

/** Options of a worker. */
export interface ServeOptions extends Partial<ConnectOptions>, WorkerFacts {
  /** Abort it to drain the worker. SIGTERM and SIGINT do the same, once. */
  signal?: AbortSignal;
  /** Writes a line for operators. Default: to stderr. */
  log?: (line: string) => void;
}

/**
 * Serves tools to the service at `url` (default: TOOLGATE_URL, otherwise http://127.0.0.1:7420) with `token` (default: TOOLGATE_TOKEN),
 * which needs the role `worker`. Connects again whenever the connection is lost. Resolves when the worker has drained; rejects if the
 * first connection is refused, or if another process has the same instance ID.
 */
export async function serve(tools: readonly DefinedTool[], options: ServeOptions = {}): Promise<void> {
  const { signal, log = (line) => process.stderr.write(`${line}\n`) } = options;
  const hello = workerHello(tools, options);
  const connectOptions = findServer(options, "worker");
  if (connectOptions.token === undefined) throw new Error(`a worker needs a token: ${tokenStep(hello)}`);
  const worker = createWorker(tools, { hello, connectOptions, log });
  // Once: the same signal again ends the process.
  const drain = () => {
    removeListeners();
    drainWorker(worker);
  };
  function removeListeners(): void {
    for (const name of ["SIGTERM", "SIGINT"] as const) process.off(name, drain);
    signal?.removeEventListener("abort", drain);
  }
  for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, drain);
  signal?.addEventListener("abort", drain, { once: true });
  if (signal?.aborted) drain();
  await runWorker(worker).finally(removeListeners);
}
