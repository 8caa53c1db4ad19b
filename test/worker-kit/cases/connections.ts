import {
  check,
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
import type { KitConnection } from "../kit-wire.ts";
import type { KitWorker } from "../kit-worker.ts";

/** Checks that a connection continues the one before with these assignments. */
function checkResumes(worker: KitWorker, { hello }: KitConnection, held: readonly string[]): void {
  const first = worker.wire.connections[0]?.hello;
  const index = worker.wire.connections.findIndex((each) => each.hello === hello);
  const before = worker.wire.connections[index - 1]?.hello;
  check(hello.instanceId === first?.instanceId, "the same hello.instance_id", hello.instanceId);
  check(before !== undefined && hello.connection > before.connection, "a higher hello.connection", hello.connection);
  check(hello.held.toSorted().join() === held.toSorted().join(), `hello.held ${JSON.stringify(held)}`, hello.held);
}

const assignmentOf = async (kit: Kit, worker: KitWorker, text: string) =>
  (await untilSeen(kit, worker, "service", "start", ({ call }) => call?.input?.text === text)).assignment;

async function cutOutput(kit: Kit): Promise<void> {
  const size = 1_048_576;
  let stored = 0;
  let isCut = false;
  const worker = await kit.startWorker(({ rules }) => {
    // Each connection stores something, so that the output comes to an end on a slow machine, too.
    rules.fromService = (message) => {
      if (message.case === "receipt" && Number(message.value.stored[0]) >= stored + 65_536) {
        stored = Number(message.value.stored[0]);
        isCut = true;
      }
      return "pass";
    };
    // Each cut loses a piece.
    rules.fromWorker = (message, connection) => {
      if (!isCut || message.case !== "report" || message.value.report.case !== "output") return "pass";
      isCut = false;
      connection.cut();
      return "drop";
    };
  });
  const call = kit.call("kit_write", { text: "long", bytes: size, file_bytes: 0 });
  const { state } = await call.end();
  check(state.case === "completed", "the call to complete", state.value);
  const output = await kit.client("caller").tools.readToolOutput({
    ...{
      sessionId: call.sessionId,
      output: String(state.value.metadata?.outputPath),
      range: { case: "bytes", value: { offset: 0n, limit: size } },
    },
  });
  checkBytes(output.data, Number(output.totalBytes), size);
  checkLedger(worker, ["entered long"]);
  check(
    worker.wire.connections.length > 3,
    "the worker to connect again after each cut",
    worker.wire.connections.length,
  );
}

function checkBytes(data: Uint8Array, total: number, size: number): void {
  check(total === size, `${size} bytes`, `${total} bytes`);
  const wrong = data.findIndex((byte, index) => byte !== 97 + (index % 26));
  check(wrong === -1, "the bytes of the body, each once", `byte ${wrong} is ${data[wrong]}`);
}

async function cutResult(kit: Kit): Promise<void> {
  let cut: KitConnection | undefined;
  const worker = await kit.startWorker(({ rules }) => {
    rules.fromWorker = (message, connection) => {
      if (message.case !== "report" || message.value.report.case !== "result" || cut) return "pass";
      cut = connection;
      connection.cut();
      return "drop";
    };
  });
  const call = kit.call("kit_echo", { text: "result" });
  const assignment = await assignmentOf(kit, worker, "result");
  const lost = await kit.until("a result from the worker", worker, () => cut);
  checkResumes(worker, await connectionAfter(kit, worker, lost), [assignment]);
  await checkOutput(call, "result");
  checkLedger(worker, ["entered result"]);
}

async function askAcrossCut(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const call = kit.call("kit_ask", { text: "cut", tool: "" });
  await kit.untilAsked(call, "kit_traffic", "cut");
  const assignment = await assignmentOf(kit, worker, "cut");
  const lost = servedBy(worker);
  worker.wire.cut();
  const next = await connectionAfter(kit, worker, lost);
  await kit.until("the open request on the next connection", worker, () =>
    worker.wire.seen.some(
      ({ connection, from, message }) =>
        connection === next &&
        from === "worker" &&
        message.case === "report" &&
        message.value.assignment === assignment &&
        message.value.report.case === "request",
    ),
  );
  await kit.reply(call, "kit_traffic", "cut", "once");
  await checkOutput(call, "cut");
  checkLedger(worker, ["entered cut"]);
}

async function replicaChange(kit: Kit): Promise<void> {
  await kit.withOther(async (service) => {
    const worker = await kit.startWorker(undefined, service);
    const call = kit.call("kit_wait", { text: "adopted" }, { service });
    await untilLedger(kit, worker, "entered adopted");
    const lost = servedBy(worker);
    await service.kill();
    await service.start();
    const assignment = await assignmentOf(kit, worker, "adopted");
    checkResumes(worker, await welcomeAfter(kit, worker, lost), [assignment]);
    await worker.release("adopted");
    await checkOutput(call, "adopted");
    checkLedger(worker, ["entered adopted"]);
  });
}

async function twoConnections(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const call = kit.call("kit_wait", { text: "moved" });
  await untilLedger(kit, worker, "entered moved");
  const first = servedBy(worker);
  let wasOpen = false;
  worker.wire.rules.fromService = ({ case: name }) => {
    if (name === "welcome") wasOpen = first.isOpen;
    return "pass";
  };
  first.toWorker({ case: "leave", value: { stop: false, withinMs: 30_000 } });
  const second = await connectionAfter(kit, worker, first);
  checkResumes(worker, second, [await assignmentOf(kit, worker, "moved")]);
  await kit.until("a welcome on the second connection", worker, () => second.isWelcome);
  check(wasOpen, "the first connection to stay open until the second is welcome", "it was closed before");
  await kit.until("the first connection to be closed", worker, () => !first.isOpen);
  await worker.release("moved");
  await checkOutput(call, "moved");
  checkLedger(worker, ["entered moved"]);
}

async function staleAssignment(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const line = servedBy(worker);
  const call = kit.call("kit_wait", { text: "once" });
  const start = await untilSeen(kit, worker, "service", "start");
  line.toWorker({ case: "start", value: start });
  await untilLedger(kit, worker, "entered once");
  line.toWorker({ case: "start", value: start });
  const unknown = "an-assignment-that-never-was";
  line.toWorker({ case: "receipt", value: { assignment: unknown, stored: { 0: 5n } } });
  line.toWorker({ case: "cancel", value: { assignment: unknown, graceMs: 100 } });
  line.toWorker({ case: "answer", value: { assignment: unknown, number: 1 } });
  line.toWorker({ case: "answer", value: { assignment: start.assignment, number: 9 } });
  line.toWorker({ case: "ended", value: { assignment: unknown } });
  await worker.release("once");
  await checkOutput(call, "once");
  await untilSeen(kit, worker, "service", "ended", ({ assignment }) => assignment === start.assignment);
  line.toWorker({ case: "start", value: start });
  await checkServes(kit);
  checkLedger(worker, ["entered once", ...served]);
}

const served = ["1", "2", "3"].map((text) => `entered ${text}`);

/** Makes some calls, one after the other: what came before them has been handled then. */
async function checkServes(kit: Kit): Promise<void> {
  for (const text of ["1", "2", "3"]) await checkOutput(kit.call("kit_echo", { text }), text);
}

async function oldConnection(kit: Kit): Promise<void> {
  let isOldStartSent = false;
  const worker = await kit.startWorker();
  const first = servedBy(worker);
  worker.wire.rules.fromService = ({ case: name }, connection) => {
    const isFirst = connection === first;
    return (isFirst && name === "start") || (!isFirst && !isOldStartSent) ? "hold" : "pass";
  };
  const call = kit.call("kit_echo", { text: "moved" });
  const start = await untilSeen(kit, worker, "service", "start");
  first.toWorker({ case: "leave", value: { stop: false, withinMs: 30_000 } });
  const second = await connectionAfter(kit, worker, first);
  checkResumes(worker, second, []);
  first.toWorker({ case: "start", value: start });
  isOldStartSent = true;
  // The start of the first connection is sent already.
  await untilSeen(kit, worker, "service", "welcome", (_, { connection }) => connection === second);
  worker.wire.rules.fromService = ({ case: name }, connection) =>
    connection === first && name !== "beat" ? "drop" : "pass";
  worker.wire.release();
  await checkOutput(call, "moved");
  await checkServes(kit);
  checkLedger(worker, ["entered moved", ...served]);
}

async function probe(kit: Kit): Promise<void> {
  const worker = await kit.startWorker();
  const line = servedBy(worker);
  const answerTo = async (assignment: string) => {
    const before = worker.wire.seen.length;
    line.toWorker({ case: "probe", value: assignment });
    const isAnswer = (each: string, seen: (typeof worker.wire.seen)[number]) =>
      each === assignment && worker.wire.seen.indexOf(seen) >= before;
    return (await untilSeen(kit, worker, "worker", "known", (known, seen) => isAnswer(known.assignment, seen))).entered;
  };
  const call = kit.call("kit_wait", { text: "probed" });
  await untilLedger(kit, worker, "entered probed");
  const start = await untilSeen(kit, worker, "service", "start");
  check(await answerTo(start.assignment), "known.entered of a body that runs", "known.entered = false");
  await worker.release("probed");
  await checkOutput(call, "probed");
  await untilSeen(kit, worker, "service", "ended");
  check(await answerTo(start.assignment), "known.entered of a body that has ended", "known.entered = false");
  const never = "an-assignment-that-never-was";
  check(!(await answerTo(never)), "known.entered = false of an unknown assignment", "known.entered = true");
  line.toWorker({ case: "start", value: { ...start, assignment: never } });
  await checkServes(kit);
  checkLedger(worker, ["entered probed", ...served]);
}

async function attachment(kit: Kit): Promise<void> {
  const size = 600_000;
  let passed = 0;
  const worker = await kit.startWorker(({ rules }) => {
    rules.fromWorker = (message, connection) => {
      if (message.case !== "report" || message.value.report.case !== "output") return "pass";
      const { blob, data } = message.value.report.value;
      if (blob === 0 || passed > 400_000) return "pass";
      passed += data.length;
      if (passed > 400_000) connection.cut();
      return "pass";
    };
  });
  const call = kit.call("kit_write", { text: "file", bytes: 10, file_bytes: size });
  const { state } = await call.end();
  check(state.case === "completed", "the call to complete", state.value);
  const [file, ...more] = state.value.attachments;
  check(file?.filename === "file.txt" && more.length === 0, "one attachment, file.txt", state.value.attachments);
  const output = await kit.client("caller").tools.readToolOutput({
    ...{ sessionId: call.sessionId, output: file.url, range: { case: "bytes", value: { offset: 0n, limit: size } } },
  });
  checkBytes(output.data, Number(output.totalBytes), size);
  checkLedger(worker, ["entered file"]);
}

/** Cases about lost and changed connections. */
export const connectionCases: readonly KitCase[] = [
  {
    name: "output cut often",
    isCore: true,
    rule: "output is kept until its receipt, and sent again with its offset",
    run: cutOutput,
  },
  {
    name: "result cut",
    isCore: true,
    rule: "a result is kept until `ended`, and its assignment is in `held`",
    run: cutResult,
  },
  {
    name: "ask across a cut",
    isCore: false,
    rule: "a request without an answer is sent again on the next connection",
    run: askAcrossCut,
  },
  {
    name: "replica change",
    isCore: true,
    rule: "bodies go on while the service is away, and are in `held` of the next hello",
    run: replicaChange,
  },
  {
    name: "two connections",
    isCore: true,
    rule: "after `leave` the next connection is opened first, then the earlier one is closed",
    run: twoConnections,
  },
  {
    name: "stale assignment",
    isCore: true,
    rule: "an assignment is entered once; messages about unknown ones have no effect",
    run: staleAssignment,
  },
  {
    name: "start on an old connection",
    isCore: true,
    rule: "nothing is read from a connection after the next one was opened",
    run: oldConnection,
  },
  {
    name: "probe",
    isCore: true,
    rule: "known.entered is true if the body was entered at any time; false promises never to enter it",
    run: probe,
  },
  {
    name: "attachment",
    isCore: false,
    rule: "attachments are kept until `ended`; they do not count for the window",
    run: attachment,
  },
];
