import type { WorkerStart, WorkResponse } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { dismissWorker, drainWorker, leaveIfDrained, sendKept, type Worker } from "./worker-state.ts";

/** Assignments that are remembered after their end, so that a late message about one is answered truthfully. */
const maxKnown = 100_000;

/** Handles a message of the service; returns false if the next connection is to be opened. */
export function handleMessage(worker: Worker, message: WorkResponse["message"]): boolean {
  const { bodies, held, plans } = worker;
  switch (message.case) {
    case "plan":
      void plans.plan(message.value).then((value) => worker.send?.({ case: "planned", value }));
      return true;
    case "start":
      startBody(worker, message.value);
      return true;
    case "cancel":
      bodies.cancel(message.value);
      return true;
    case "receipt":
      held.receive(message.value);
      return true;
    case "answer":
      held.dropRequest(message.value.assignment, message.value.number);
      bodies.answer(message.value);
      return true;
    case "probe":
      answerProbe(worker, message.value);
      return true;
    case "ended":
      bodies.end(message.value.assignment);
      held.end(message.value.assignment);
      leaveIfDrained(worker);
      return true;
    case "leave":
      if (!message.value.stop) return false;
      if (worker.isDraining) dismissWorker(worker);
      else drainWorker(worker);
      return true;
    default:
      // A later version of the service may send more.
      return true;
  }
}

/** Enters a body, once: the same assignment again has no effect. */
function startBody(worker: Worker, start: WorkerStart): void {
  const { assignment } = start;
  const { held, bodies, known } = worker;
  if (known.has(assignment)) return;
  remember(worker, assignment, !worker.isDraining);
  held.open(assignment, !worker.isDraining);
  if (!worker.isDraining) return void bodies.start(start);
  const outcome = { case: "notEntered", value: "this process stops" } as const;
  const report = { case: "result", value: { outcome } } as const;
  void sendKept(worker, { case: "report", value: { assignment, report } });
}

function answerProbe(worker: Worker, assignment: string): void {
  // False is a promise: if the start of this assignment is still under way, it has no effect.
  if (!worker.known.has(assignment)) remember(worker, assignment, false);
  worker.send?.({ case: "known", value: { assignment, entered: worker.known.get(assignment) ?? false } });
}

function remember({ known, held }: Worker, assignment: string, isEntered: boolean): void {
  known.set(assignment, isEntered);
  for (const first of known.keys()) {
    if (known.size <= maxKnown) return;
    if (!held.has(first)) known.delete(first);
  }
}
