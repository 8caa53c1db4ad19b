import { createClient } from "@connectrpc/connect";
import { useEffect, useMemo } from "preact/hooks";
import {
  type WorkerFleet,
  type WorkerProcess,
  WorkerService,
} from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { fleetSummary, processesOf, workerState, workerTokenWords } from "../../view/workers.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { useLoaded } from "../shell/load.ts";
import { ListPage, type PageProps } from "../shell/page.tsx";
import "./workers.css";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { durationOf, momentOf } from "../../view/quantities.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useNow } from "../shell/now.ts";

const refreshMs = 3_000;

/** The fleets of workers: what they run, what waits for them, and what is refused. It refreshes itself while it is visible. */
export function WorkersPage({ connection: { transport } }: PageProps) {
  const service = useMemo(() => createClient(WorkerService, transport), [transport]);
  const list = useLoaded(
    (signal) => Array.fromAsync(pagesOf((page) => service.listWorkers(page, { signal }))),
    [service],
  );
  const { value, isLoading, reload } = list;
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
    <ListPage title="Workers" list={list}>
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
    </ListPage>
  );
}

const kinds = { connected: "look", draining: "change", away: "beyond" } as const;

/** A fleet: its tools, what waits for it, and each of its processes. */
function FleetCard({ fleet, workers }: { fleet: WorkerFleet; workers: readonly WorkerProcess[] }) {
  const { worker, principal, tools, seen, waiting } = fleet;
  const own = processesOf(fleet, workers);
  const isServed = own.some((process) => workerState(process) === "connected");
  return (
    <li class="card">
      <p class="card-head">
        <b class="mono">{worker}</b>
        <span class="mark" data-kind={isServed ? (waiting > 0 ? "change" : "look") : "beyond"}>
          {fleetSummary(fleet, own)}
        </span>
        <small>token {visibleText(principal)}</small>
      </p>
      {own.length === 0 && (
        <p>
          Last seen <Seen time={seen} />. Calls of its tools still ask, and wait for a worker.
        </p>
      )}
      <p class="worker-tools">
        {tools.map((name) => (
          <code key={name}>{name}</code>
        ))}
      </p>
      <ul class="processes">
        {own.map((process) => (
          <Process key={process.instanceId} process={process} />
        ))}
      </ul>
    </li>
  );
}

function Process({ process }: { process: WorkerProcess }) {
  const { instanceId, buildId, generation, sdk, workspaces, capacity, running, seen, replica, tools } = process;
  const state = workerState(process);
  const facts = [sdk, `workspaces ${workspaces.join(", ")}`, `replica ${replica.slice(0, 8)}`, instanceId];
  return (
    <li>
      <p class="process-head">
        <span class="mark" data-kind={kinds[state]}>
          {state}
        </span>
        <meter max={capacity} value={running} aria-label="Running" />
        runs {running} of {capacity}
        {buildId !== "" && <b class="mono">{visibleText(buildId)}</b>}
        {generation > 0n && <span>generation {String(generation)}</span>}
        <small>
          seen <Seen time={seen} />
        </small>
      </p>
      <small>{visibleText(facts.filter((fact) => fact !== "").join(" · "))}</small>
      {tools.map(
        ({ name, registration, message }) =>
          registration !== ToolRegistration.REGISTERED && (
            <p class="problem" key={name}>
              <code>{visibleText(name)}</code> is not offered: {visibleText(message)}
            </p>
          ),
      )}
    </li>
  );
}

/** Age of a sign of life, in words; a beat is some seconds old. */
function Seen({ time }: { time: number }) {
  const ms = useNow() - time;
  return <time title={momentOf(time)}>{ms < 20_000 ? "just now" : `${durationOf(ms)} ago`}</time>;
}
