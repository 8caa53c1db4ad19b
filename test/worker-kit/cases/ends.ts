import type { KitCall } from "../kit.ts";
import {
  check,
  checkExit,
  checkLedger,
  checkOutput,
  connectionAfter,
  type Kit,
  type KitCase,
  servedBy,
  untilLedger,
  untilSeen,
  welcomeAfter,
} from "../kit.ts";
import type { KitWorker } from "../kit-worker.ts";

/** Starts a body that runs until it is released. */
async function startBody(kit: Kit, worker: KitWorker, text: string): Promise<KitCall> {
  const call = kit.call("kit_wait", { text });
  await untilLedger(kit, worker, `entered ${text}`);
  return call;
}

/** Asks the worker to finish and stop, and waits until it takes no more work. */
async function drain(kit: Kit, worker: KitWorker, ask: () => void): Promise<void> {
  ask();
  await untilSeen(kit, worker, "worker", "capacity", ({ draining }) => draining);
}

/** Time between beats that the worker is to keep, for cases that wait for them. */
const beatMs = 400;

const beatsOf = ({ wire }: KitWorker) =>
  wire.seen.filter(({ from, message }) => from === "worker" && message.case === "beat");

const leaveOf = (worker: KitWorker) => () =>
  servedBy(worker).toWorker({ case: "leave", value: { stop: true, withinMs: 600_000 } });

async function notEntered(kit: Kit): Promise<void> {
  const worker = await kit.startWorker(({ rules }) => {
    rules.changeForWorker = (message) => {
      if (message.case === "welcome") Object.assign(message.value, { beatMs });
    };
  });
  const running = await startBody(kit, worker, "running");
  worker.wire.rules.fromService = ({ case: name }) => (name === "start" ? "hold" : "pass");
  const moved = kit.call("kit_echo", { text: "moved" });
  const { assignment } = await untilSeen(kit, worker, "service", "start", ({ call }) => call?.input?.text === "moved");
  await drain(kit, worker, leaveOf(worker));
  // It holds nothing any more, but this start is under way.
  await worker.release("running");
  await checkOutput(running, "running");
  await untilSeen(kit, worker, "service", "ended", (each) => each.assignment !== assignment);
  const { length: before } = beatsOf(worker);
  await kit.until("a worker without bodies to wait for `leave`", worker, () => beatsOf(worker).length > before);
  worker.wire.release();
  const { report } = await untilSeen(kit, worker, "worker", "report", (each) => each.assignment === assignment);
  const isRefusal = report.case === "result" && report.value.outcome.case === "notEntered";
  check(isRefusal, "the result not_entered for a start after `draining`", report);
  await kit.startWorker();
  await checkOutput(moved, "moved");
  await checkExit(kit, worker);
  checkLedger(worker, ["entered running"]);
}

async function drainWithBody(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const call = await startBody(kit, worker, "drained");
  await drain(kit, worker, leaveOf(worker));
  await worker.release("drained");
  await checkOutput(call, "drained");
  await checkExit(kit, worker);
  checkLedger(worker, ["entered drained"]);
}

async function sigterm(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const call = await startBody(kit, worker, "ended");
  await drain(kit, worker, worker.terminate);
  worker.wire.cut();
  const isAgain = () => {
    const drains = worker.wire.seen.filter(({ message }) => message.case === "capacity" && message.value.draining);
    return drains.length > 1;
  };
  await kit.until("`draining` again on the next connection", worker, isAgain);
  await worker.release("ended");
  await checkOutput(call, "ended");
  await checkExit(kit, worker);
  checkLedger(worker, ["entered ended"]);
}

async function endedEarly(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const over = await startBody(kit, worker, "over");
  const { assignment } = await untilSeen(kit, worker, "service", "start");
  servedBy(worker).toWorker({ case: "ended", value: { assignment, recorded: false } });
  await untilLedger(kit, worker, "stopped over");
  await checkOutput(kit.call("kit_echo", { text: "next" }), "next");
  const reports = worker.wire.seen.flatMap(({ from, message }) =>
    from === "worker" && message.case === "report" && message.value.assignment === assignment ? [message.value] : [],
  );
  check(reports.length === 0, "no report after `ended`", reports);
  const { sessionId, callId } = over;
  await kit.client("caller").tools.cancelTool({ sessionId, callId });
  checkLedger(worker, ["entered over", "stopped over", "entered next"]);
}

async function endedLate(kit: Kit): Promise<void> {
  const worker = await kit.startWorker(({ rules }) => {
    rules.fromService = ({ case: name }) => (name === "ended" ? "hold" : "pass");
    rules.changeForWorker = (message) => {
      if (message.case === "welcome") Object.assign(message.value, { beatMs });
    };
  });
  const call = await startBody(kit, worker, "late");
  await drain(kit, worker, worker.terminate);
  // No start is under way, and the service itself confirms that only with the end of the last body.
  leaveOf(worker)();
  await worker.release("late");
  await checkOutput(call, "late");
  const { length: before } = beatsOf(worker);
  await kit.until("a worker with a result to wait for `ended`", worker, () => beatsOf(worker).length > before + 2);
  worker.wire.release();
  await checkExit(kit, worker);
  checkLedger(worker, ["entered late"]);
}

async function storeChanged(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const lost = await startBody(kit, worker, "lost");
  await kit.withOther(async (service) => {
    worker.wire.rules.target = service.url;
    const before = servedBy(worker);
    worker.wire.cut();
    const next = await welcomeAfter(kit, worker, before);
    const { held, expectedStoreId } = next.hello;
    check(held.length === 0 && expectedStoreId === "", "a hello without `held` and a store", { held, expectedStoreId });
    const { hello: refused } = await connectionAfter(kit, worker, before);
    check(refused.expectedStoreId !== "", "hello.expected_store_id of the first store", "an empty one");
    await untilLedger(kit, worker, "stopped lost");
    await checkOutput(kit.call("kit_echo", { text: "new" }, { service }), "new");
  });
  const { sessionId, callId } = lost;
  await kit.client("caller").tools.cancelTool({ sessionId, callId });
  checkLedger(worker, ["entered lost", "stopped lost", "entered new"]);
}

async function silence(kit: Kit): Promise<void> {
  const worker = await kit.startWorker(({ rules }) => {
    rules.changeForWorker = (message) => {
      if (message.case === "welcome") Object.assign(message.value, { beatMs, silenceMs: 4_000, resumeMs: 1_000 });
    };
  });
  const first = servedBy(worker);
  // The service beats less often than this worker expects.
  let sent = 0;
  const beats = setInterval(() => {
    sent += 1;
    first.toWorker({ case: "beat", value: {} });
  }, beatMs);
  try {
    const count = () => beatsOf(worker).length;
    await kit.until("a beat each beat_ms", worker, () => {
      check(sent < 50, "a beat each beat_ms", `${count()} beats in ${sent * beatMs} ms`);
      return count() >= 3;
    });
    await startBody(kit, worker, "silent");
  } finally {
    clearInterval(beats);
  }
  const { rules } = worker.wire;
  Object.assign(rules, { isClosed: true, fromService: () => "drop" });
  // To the service the worker is still there.
  const still = setInterval(() => first.toService({ case: "beat", value: {} }), 1_000);
  try {
    await kit.until("the worker to end a silent connection", worker, () => !first.isOpen);
    await untilLedger(kit, worker, "stopped silent");
  } finally {
    clearInterval(still);
  }
  const { assignment } = await untilSeen(kit, worker, "service", "start");
  Object.assign(rules, { isClosed: false, fromService: () => "pass", changeForWorker: () => undefined });
  const next = await welcomeAfter(kit, worker, first);
  check(next.hello.held.includes(assignment), "the stopped body in `held` until its end is known", next.hello.held);
  await checkOutput(kit.call("kit_echo", { text: "again" }), "again");
  checkLedger(worker, ["entered silent", "stopped silent", "entered again"]);
}

/** Cases about the end of bodies, processes and stores. */
export const endCases: readonly KitCase[] = [
  {
    name: "not entered",
    isCore: true,
    rule: "a start after `draining` is answered with not_entered, until `leave` with `stop`",
    run: notEntered,
  },
  {
    name: "drain with a body",
    isCore: true,
    rule: "a worker leaves when each assignment is `ended`, and exits with 0",
    run: drainWithBody,
  },
  {
    name: "ended early",
    isCore: true,
    rule: "after `ended` a body stops, and nothing is reported",
    run: endedEarly,
  },
  {
    name: "ended late",
    isCore: true,
    rule: "a worker that drains keeps a result until `ended`, and exits after it",
    run: endedLate,
  },
  { name: "SIGTERM", isCore: true, rule: "SIGTERM drains, across connections", run: sigterm },
  {
    name: "store changed",
    isCore: true,
    rule: "with STORE_CHANGED the bodies stop, and the next hello is without them",
    run: storeChanged,
  },
  {
    name: "silence and self-stop",
    isCore: true,
    rule: "a silent connection is left; after resume_ms without a service the bodies stop",
    run: silence,
  },
];
