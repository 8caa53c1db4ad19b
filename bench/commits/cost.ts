import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { callByConnect, openSession } from "../echoes.ts";
import { type Echo, measure } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { table } from "../report.ts";
import { askOnce } from "../scale/answer.ts";
import { createAskingFile } from "../scale/asking-file.ts";
import { startToolgate, type Toolgate } from "../toolgate.ts";
import { figureRow } from "./ratio.ts";
import { createFigures, createSides, type InTurn, inTurns, type Side } from "./sides.ts";

export interface CostPlan {
  /** Calls of each service before anything is measured, and a fifth of it of calls that ask. */
  readonly warmUp: number;
  /** Milliseconds per figure and service. */
  readonly ms: number;
}

/** A service that is measured. The control is the commit once more: its ratio to the commit shows what the machine alone does. */
type Measured = "ours" | "theirs" | "control";

/**
 * Compares what a call and an answer cost on both stores with a commit. Each round starts new processes of this checkout, of the
 * commit and of the commit once more, and measures each figure of all directly one after the other, in an order that changes.
 */
export async function compareCosts(
  processes: Processes,
  commit: string,
  { rounds, warmUp, ms }: CostPlan & { readonly rounds: number },
  print: (text: string) => void,
): Promise<void> {
  const { head, other, sidesOf } = await createSides(processes, commit);
  const { add, figures } = createFigures();
  const controls = createFigures();

  function addAll(label: string, costs: readonly { who: Measured; value: number }[]): void {
    for (const { who, value } of costs) {
      if (who !== "control") add(label, "µs", { name: who, main: "" }, value);
      if (who !== "ours")
        controls.add(`${label}, control`, "µs", { name: who === "theirs" ? "theirs" : "ours", main: "" }, value);
    }
  }

  for (let round = 0; round < rounds; round += 1) {
    for (const store of ["SQLite", "Redis"] as const) {
      const services = [];
      for (const { who, main } of inOrder(sidesOf(round), round)) {
        const redis = store === "Redis" ? await startRedis(processes) : undefined;
        const name = `cost-${store}-${who}-${round}`;
        const toolgate = await startToolgate(processes, { name, main, ...(redis && { store: redis.url }) });
        services.push({ who, toolgate, also: redis?.pid });
      }
      for (const [label, open, calls] of [
        ["call", echoOf, warmUp],
        ["asked and answered call", answerOf, warmUp / 5],
      ] as const) {
        const targets: (InTurn & { who: Measured })[] = [];
        for (const { who, toolgate, also } of services) {
          const target = { pids: [toolgate.server.pid], echo: await open(toolgate) };
          // At once: a connection without traffic is closed.
          await measure(target, { calls }, width);
          targets.push({ who, target, ...(also !== undefined && { also }) });
        }
        const costs = await inTurns(targets, ms, width);
        const what = `${label} on ${store}, CPU of the service`;
        addAll(
          what,
          costs.map(({ who, cpu }) => ({ who, value: cpu })),
        );
        if (store === "Redis")
          addAll(
            `${label} on Redis, CPU of Redis`,
            costs.map(({ who, also }) => ({ who, value: also })),
          );
      }
      await processes.stopAll();
    }
  }
  print(
    `Checkout at ${head} beside commit ${other}: medians of ${rounds} round${rounds === 1 ? "" : "s"}; the mean ratio with its 95 % interval. A control is the commit beside itself: what differs there is the machine.`,
  );
  print(table(["", "checkout", other, "ratio", "verdict"], [...figures(), ...controls.figures()].map(figureRow)));
}

/** Calls that are open at the same time. */
const width = 8;

/** The services of a round: the control stands on each side of the commit in turn. */
function inOrder(sides: readonly Side[], round: number): { who: Measured; main: string }[] {
  return sides.flatMap(({ name, main }): { who: Measured; main: string }[] => {
    if (name === "ours") return [{ who: name, main }];
    const both: { who: Measured; main: string }[] = [
      { who: name, main },
      { who: "control", main },
    ];
    return round % 4 < 2 ? both : both.toReversed();
  });
}

async function echoOf(toolgate: Toolgate): Promise<Echo> {
  const client = toolgate.connect("caller");
  return callByConnect(client, await openSession(client));
}

/** A call that asks, and is answered and completed. */
async function answerOf(toolgate: Toolgate): Promise<Echo> {
  const [caller, approver] = [toolgate.connect("caller"), toolgate.connect("approver-1")];
  const [sessionId, filePath] = [await openSession(caller), await createAskingFile(toolgate.workspace)];
  let count = 0;
  return async () => {
    count += 1;
    const call = await askOnce(caller, { sessionId, callId: `call_${count}`, tool: "read", input: { filePath } });
    const answer = { sessionId, permissionId: await call.asked, reply: PermissionReply.ONCE };
    await approver.connect(PermissionService.method.respondToPermission, answer);
    await call.completed;
  };
}
