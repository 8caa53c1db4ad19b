import { ToolRegistration, WorkerFailure } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { ToolErrorReason } from "../../../src/client/client.ts";
import {
  check,
  checkLedger,
  checkOutput,
  checkReason,
  type Kit,
  type KitCase,
  servedBy,
  untilLedger,
  untilSeen,
} from "../kit.ts";

const coreTools = ["kit_echo", "kit_write", "kit_wait", "kit_poll"];

async function attach(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const { hello } = worker.wire.connections[0] ?? {};
  check(hello?.protocol === 1, "hello.protocol 1", hello?.protocol);
  check(/^wrk_[A-Za-z0-9_-]{16,60}$/.test(hello.instanceId), "a random hello.instance_id", hello.instanceId);
  // An attempt that reached no service has taken a number, too.
  check(hello.connection >= 1n, "hello.connection from 1 on", hello.connection);
  check(hello.worker !== "", "a name in hello.worker", hello.worker);
  check(hello.capacity >= 4, "hello.capacity of at least 4", hello.capacity);
  check(hello.resumeMs >= 10_000, "hello.resume_ms of at least 10000", hello.resumeMs);
  check(
    hello.held.length === 0 && hello.expectedStoreId === "",
    "a first hello without `held` and a store",
    hello.held,
  );
  const { tools } = await untilSeen(kit, worker, "service", "welcome");
  const missing = coreTools.filter(
    (name) => !tools.some((tool) => tool.name === name && tool.registration === ToolRegistration.REGISTERED),
  );
  check(missing.length === 0, `the tools ${missing.join(", ")}`, tools);
  await checkOutput(kit.call("kit_echo", { text: "hello" }), "hello");
  const { recorded } = await untilSeen(kit, worker, "service", "ended");
  check(recorded, "a recorded result", "another end");
  checkLedger(worker, ["entered hello"]);
}

async function badTool(kit: Kit): Promise<void> {
  const worker = await kit.startWorker(({ rules }) => {
    const { changeHello } = rules;
    rules.changeHello = (hello) => {
      changeHello(hello);
      for (const tool of hello.tools) if (tool.name === "kit_poll") tool.description = "";
    };
  });
  const { tools } = await untilSeen(kit, worker, "service", "welcome");
  const refused = tools.filter(({ registration }) => registration !== ToolRegistration.REGISTERED);
  check(refused.map(({ name }) => name).join() === "kit_poll", "only kit_poll to be refused", refused);
  await checkOutput(kit.call("kit_echo", { text: "good" }), "good");
}

async function templateAsk(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const allowed = kit.call("kit_echo", { text: "ask first" });
  await kit.reply(allowed, "kit_echo", "ask first", "once");
  await checkOutput(allowed, "ask first");
  const refused = kit.call("kit_echo", { text: "ask second" });
  await kit.reply(refused, "kit_echo", "ask second", "reject");
  await checkReason(refused, ToolErrorReason.REJECTED);
  checkLedger(worker, ["entered ask first"]);
}

async function plan(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  await worker.setVersion("planned", "v1");
  const call = kit.call("kit_plan", { text: "planned" });
  await kit.reply(call, "kit_version", "planned v1", "once");
  await checkOutput(call, "planned v1");
  checkLedger(worker, ["entered planned"]);
}

async function planDrift(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  await worker.setVersion("drift", "v1");
  const call = kit.call("kit_plan", { text: "drift" });
  await kit.untilAsked(call, "kit_version", "drift v1");
  await worker.setVersion("drift", "v2");
  await kit.reply(call, "kit_version", "drift v1", "once");
  await kit.reply(call, "kit_version", "drift v2", "once");
  await checkOutput(call, "drift v2");
  checkLedger(worker, ["entered drift"]);
}

async function changed(kit: Kit): Promise<void> {
  const worker = await kit.startWorker(({ rules }) => {
    rules.fromService = ({ case: name }) => (name === "start" ? "hold" : "pass");
  });
  await worker.setVersion("changed", "v1");
  const call = kit.call("kit_plan", { text: "changed" });
  await kit.reply(call, "kit_version", "changed v1", "once");
  await untilSeen(kit, worker, "service", "start");
  await worker.setVersion("changed", "v2");
  worker.wire.release();
  await checkReason(call, ToolErrorReason.CHANGED_AFTER_APPROVAL);
}

async function askInBody(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const allowed = kit.call("kit_ask", { text: "allowed", tool: "" });
  await kit.reply(allowed, "kit_traffic", "allowed", "once");
  await checkOutput(allowed, "allowed");
  const refused = kit.call("kit_ask", { text: "refused", tool: "" });
  await kit.reply(refused, "kit_traffic", "refused", "reject");
  await checkReason(refused, ToolErrorReason.REJECTED);
  await untilLedger(kit, worker, "stopped refused");
  checkLedger(worker, ["entered allowed", "entered refused", "stopped refused"]);
  await kit.withOther(async (service) => {
    const second = await kit.startWorker(undefined, service);
    await checkReason(kit.call("kit_ask", { text: "late", tool: "" }, { service }), ToolErrorReason.EXPIRED);
    await untilLedger(kit, second, "stopped late");
  });
}

async function cancel(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  for (const tool of ["kit_wait", "kit_poll"]) {
    const call = kit.call(tool, { text: tool });
    await untilLedger(kit, worker, `entered ${tool}`);
    const { sessionId, callId } = call;
    await kit.client("caller").tools.cancelTool({ sessionId, callId });
    await checkStopped(kit, worker, tool);
    await checkReason(call, ToolErrorReason.CANCELLED);
  }
}

async function deadline(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const call = kit.call("kit_wait", { text: "slow" }, { timeoutMs: 1_000 });
  await checkStopped(kit, worker, "slow");
  await checkReason(call, ToolErrorReason.TIMEOUT);
}

/** Checks that the body of a text was cancelled, has stopped, and reported so while its result counted. */
async function checkStopped(kit: Kit, worker: Awaited<ReturnType<Kit["startWorker"]>>, text: string): Promise<void> {
  const { assignment } = await untilSeen(kit, worker, "service", "start", ({ call }) => call?.input?.text === text);
  await untilSeen(kit, worker, "service", "ended", (ended) => ended.assignment === assignment);
  const results = worker.wire.seen.flatMap(({ message }) =>
    message.case === "report" && message.value.assignment === assignment && message.value.report.case === "result"
      ? message.value.report.value.outcome
      : [],
  );
  const [result] = results;
  check(
    result?.case === "failed" && result.value.kind === WorkerFailure.STOPPED,
    "the result STOPPED within grace_ms after `cancel`",
    result ?? "no result",
  );
  await untilLedger(kit, worker, `stopped ${text}`);
}

async function capacity(kit: Kit): Promise<void> {
  const worker = await kit.startWorker(({ rules }) => {
    const { changeHello } = rules;
    rules.changeHello = (hello) => {
      changeHello(hello);
      hello.capacity = 4;
    };
  });
  const texts = ["one", "two", "three", "four"];
  const calls = texts.map((text, index) => ({
    text,
    call: kit.call(index % 2 === 0 ? "kit_wait" : "kit_poll", { text }),
  }));
  for (const text of texts) await untilLedger(kit, worker, `entered ${text}`);
  const line = servedBy(worker);
  line.toService({ case: "capacity", value: { capacity: 0 } });
  const waiting = kit.call("kit_echo", { text: "five" });
  for (const { text, call } of calls) {
    await worker.release(text);
    await checkOutput(call, text);
  }
  checkLedger(
    worker,
    texts.map((text) => `entered ${text}`),
  );
  line.toService({ case: "capacity", value: { capacity: 4 } });
  await checkOutput(waiting, "five");
}

async function refusedCalls(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const call = kit.call("kit_ask", { text: "child", tool: "read" });
  const { number, answer } = await untilSeen(kit, worker, "service", "answer");
  check(number === 1 && answer.case === "problem", "the service to refuse the call", answer);
  await checkOutput(call, answer.value);
}

/** Cases about single calls. */
export const callCases: readonly KitCase[] = [
  {
    name: "attach",
    isCore: true,
    rule: "hello declares the process and its tools; a result has one output",
    run: attach,
  },
  {
    name: "bad tool beside good",
    isCore: true,
    rule: "a refused tool does not keep the others from being served",
    run: badTool,
  },
  {
    name: "template ask",
    isCore: true,
    rule: "kit_echo declares the pattern {text}; nothing runs before an answer",
    run: templateAsk,
  },
  { name: "plan", isCore: false, rule: "a plan has no effects; its asks are asked", run: plan },
  { name: "plan drift", isCore: false, rule: "each `plan` is answered by the state of that moment", run: planDrift },
  {
    name: "changed",
    isCore: false,
    rule: "a body whose plan no longer holds ends CHANGED, without effects",
    run: changed,
  },
  {
    name: "ask in body",
    isCore: false,
    rule: "a body waits for the answer to its ask, and stops when its call is over",
    run: askInBody,
  },
  { name: "cancel", isCore: true, rule: "a cancelled body stops, and its result comes within grace_ms", run: cancel },
  {
    name: "deadline",
    isCore: true,
    rule: "a body whose time is over stops, and its result comes within grace_ms",
    run: deadline,
  },
  {
    name: "capacity 0",
    isCore: true,
    rule: "bodies run at the same time, up to the capacity; less capacity stops none",
    run: capacity,
  },
  {
    name: "child calls refused",
    isCore: false,
    rule: "a `problem` is the end of a request, and not of the body",
    run: refusedCalls,
  },
];
