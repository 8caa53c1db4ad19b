import type { WorkerReport } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { workerIdOf } from "../../core/worker-directory.ts";
import { ExecutorLost, NotEntered } from "../../tool/errors.ts";
import { callOfAssignment, type RemoteCall, type RemoteMark } from "../../tool/remote.ts";
import { leavingReplica } from "./refusals.ts";
import { resumeBody, takeReport } from "./remote-body.ts";
import type { WorkersState } from "./state.ts";
import { createAdoptingReports, holdReport } from "./waiting-reports.ts";
import { sendTo, type WorkerProcess } from "./worker-process.ts";

const unheld = "its worker has connected again without it";
const forgotten = "The worker has connected again without the body. What the call did is not known.";

/** Goes on with the bodies that a process holds. Those that it does not hold were never entered, unless another process has them. */
export function resumeAssignments(
  state: WorkersState,
  process: WorkerProcess,
  { isTwin }: { readonly isTwin: boolean },
): void {
  const held = new Set(process.hello.held);
  for (const [assignment, body] of process.bodies) {
    if (held.has(assignment)) {
      moveCall(state, process, assignment);
      resumeBody(body);
    } else if (!body.hasResult)
      body.reject(body.isEntered || isTwin ? new ExecutorLost(forgotten) : new NotEntered(unheld));
  }
  for (const assignment of held) {
    if (process.bodies.has(assignment)) continue;
    adopt(state, process, assignment).catch((error: unknown) => {
      state.log.warn("a call of a worker cannot be continued here", { error });
      process.link?.end(leavingReplica());
    });
  }
}

/** Takes a report of a body. One that is being adopted gets it as soon as it runs here. */
export function takeAssignmentReport(process: WorkerProcess, report: WorkerReport): void {
  const { assignment } = report;
  const body = process.bodies.get(assignment);
  if (body) {
    takeReport(body, report);
    return;
  }
  const waiting = process.adopting.get(assignment);
  if (waiting === undefined) sendTo(process, { case: "ended", value: { assignment, recorded: false } });
  else holdReport(waiting, report);
}

/** Asks a process about a call whose replica was lost after its start mark. */
export function probe({ processes }: WorkersState, _call: RemoteCall, mark: RemoteMark): void {
  const process = processes.get(workerIdOf(mark.principal, mark.instance));
  if (process?.link === undefined || process.connection < mark.connection || isKnown(process, mark.assignment)) return;
  sendTo(process, { case: "probe", value: mark.assignment });
}

/** Takes the answer to a probe: continues a body that was entered, and starts the call of any other one again. */
export function takeKnown(state: WorkersState, process: WorkerProcess, assignment: string, isEntered: boolean): void {
  const call = callOfAssignment(assignment);
  if (call === undefined || isKnown(process, assignment)) return;
  const step = isEntered
    ? adopt(state, process, assignment)
    : state.calls.restartUnentered(call, markOf(process, assignment)).then(() => undefined);
  step.catch((error: unknown) => state.log.warn("a call of a worker cannot be continued here", { error }));
}

/** True for a body that runs here, or whose call is being adopted: a second adoption would be refused, and end it. */
function isKnown({ bodies, moving }: WorkerProcess, assignment: string): boolean {
  return bodies.has(assignment) || moving.has(assignment);
}

/** Returns the mark of an assignment over the connection that its process has now. */
export function markOf(
  { principal, connection, hello: { instanceId, resumeMs } }: WorkerProcess,
  assignment: string,
): RemoteMark {
  return { principal, instance: instanceId, connection, assignment, resumeMs };
}

/** Stores the connection by which a body that runs here goes on: reports of the one before are older. */
function moveCall({ calls, log }: WorkersState, process: WorkerProcess, assignment: string): void {
  const call = callOfAssignment(assignment);
  if (call === undefined) return;
  calls
    .adopt(call, markOf(process, assignment))
    .catch((error: unknown) => log.warn("the new connection of a worker could not be stored", { error, ...call }));
}

async function adopt({ calls }: WorkersState, process: WorkerProcess, assignment: string): Promise<void> {
  const call = callOfAssignment(assignment);
  const { connection, moving } = process;
  if (!process.adopting.has(assignment)) process.adopting.set(assignment, createAdoptingReports());
  moving.set(assignment, connection);
  try {
    const outcome = call && (await calls.adopt(call, markOf(process, assignment)));
    // A later connection decides: its body must not be ended because this one is refused.
    if (outcome === "adopted" || process.connection !== connection) return;
    process.adopting.delete(assignment);
    sendTo(process, { case: "ended", value: { assignment, recorded: false } });
  } finally {
    if (moving.get(assignment) === connection) moving.delete(assignment);
  }
}
