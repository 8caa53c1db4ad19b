import { createClient } from "@connectrpc/connect";
import { useEffect, useMemo } from "preact/hooks";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { workerTokenWords } from "../../view/workers.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { useLoaded } from "../shell/load.ts";
import type { PageProps } from "../shell/page.tsx";
import { FleetCard } from "./fleet-card.tsx";
import "./workers.css";

const refreshMs = 3_000;

/** The fleets of workers: what they run, what waits for them, and what is refused. It refreshes itself while it is visible. */
export function WorkersPage({ connection: { transport } }: PageProps) {
  const service = useMemo(() => createClient(WorkerService, transport), [transport]);
  const { value, problem, isLoading, reload } = useLoaded(
    (signal) => Array.fromAsync(pagesOf((page) => service.listWorkers(page, { signal }))),
    [service],
  );
  const fleets = value?.flatMap((page) => page.fleets);
  const workers = value?.flatMap((page) => page.workers) ?? [];
  useEffect(() => {
    if (isLoading) return;
    const timer = setTimeout(() => document.hidden || reload(), refreshMs);
    document.addEventListener("visibilitychange", reload);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", reload);
    };
  }, [isLoading]);
  return (
    <section class="page" aria-busy={value === undefined && problem === ""}>
      <h1>Workers</h1>
      <div class="actions">
        <button type="button" class="quiet" onClick={reload}>
          Refresh
        </button>
      </div>
      {problem !== "" && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {fleets?.length === 0 && (
        <div class="empty">
          <h2>No workers yet</h2>
          <p>
            A worker is a process of yours that brings tools, in any language, on any machine. Create a token, then
            start the worker with it in <code>TOOLGATE_TOKEN</code> and <code>{location.origin}</code> in{" "}
            <code>TOOLGATE_URL</code>.
          </p>
          <CopyCommand words={workerTokenWords} />
        </div>
      )}
      <ul class="cards">
        {fleets?.map((fleet) => (
          <FleetCard key={`${fleet.worker} ${fleet.principal}`} fleet={fleet} workers={workers} />
        ))}
      </ul>
    </section>
  );
}
