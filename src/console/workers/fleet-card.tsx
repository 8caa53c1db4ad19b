import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { WorkerFleet, WorkerProcess } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { durationOf, momentOf } from "../../view/quantities.ts";
import { fleetSummary, processesOf, workerState } from "../../view/workers.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useNow } from "../shell/now.ts";

const kinds = { connected: "look", draining: "change", away: "beyond" } as const;

/** A fleet: its tools, what waits for it, and each of its processes. */
export function FleetCard({ fleet, workers }: { fleet: WorkerFleet; workers: readonly WorkerProcess[] }) {
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
