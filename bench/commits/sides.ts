import { join } from "node:path";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { cpuTime } from "../cpu-time.ts";
import { openSession } from "../echoes.ts";
import type { Http2Client } from "../http2-client.ts";
import { measure, type Target } from "../load.ts";
import type { Processes } from "../processes.ts";
import { checkOut, resolveCommit } from "./checkout.ts";
import type { Figure } from "./ratio.ts";

/** One of the two versions: the entry point of its service. */
export interface Side {
  readonly name: "ours" | "theirs";
  readonly main: string;
}

/** Checks the commit out, and names both sides; the side that begins changes from round to round. */
export async function createSides(processes: Processes, commit: string) {
  const [head, other] = [await resolveCommit("HEAD"), await resolveCommit(commit)];
  const ours: Side = { name: "ours", main: join(import.meta.dirname, "../../src/main.ts") };
  const theirs: Side = { name: "theirs", main: await checkOut(other, join(processes.folder, "commit")) };
  return { head, other, sidesOf: (round: number) => (round % 2 === 0 ? [ours, theirs] : [theirs, ours]) };
}

/** Adds the value of one side in one round to a figure. */
export type AddFigure = (label: string, unit: string, side: Side, value: number) => void;

/** Creates an empty collection of figures, in the order in which they are first added. */
export function createFigures() {
  const all = new Map<string, { unit: string; ours: number[]; theirs: number[] }>();
  const add: AddFigure = (label, unit, { name }, value) => {
    const figure = all.get(label) ?? { unit, ours: [], theirs: [] };
    all.set(label, figure);
    figure[name].push(value);
  };
  return { add, figures: () => [...all].map(([label, figure]): Figure => ({ label, ...figure })) };
}

/** A server that is measured in turns with others. */
export interface InTurn {
  readonly target: Target;
  /** A second process whose CPU time is measured apart. */
  readonly also?: number;
}

/** Measures all for half of the time, then all again in the reverse order; resolves to µs of CPU time per call. */
export async function inTurns<T extends InTurn>(targets: readonly T[], ms: number, width?: number) {
  const sums = targets.map((of) => ({ of, calls: 0, micros: 0, also: 0 }));
  for (const sum of [...sums, ...sums.toReversed()]) {
    const { target, also } = sum.of;
    const before = also === undefined ? 0 : cpuTime(also);
    const { calls, cpuPerCall } = await measure(target, { ms: ms / 2 }, width);
    sum.calls += calls;
    sum.micros += calls * cpuPerCall;
    sum.also += (also === undefined ? 0 : cpuTime(also)) - before;
  }
  return sums.map(({ of, calls, micros, also }) => ({ ...of, cpu: micros / calls, also: also / calls }));
}

/** Opens permission requests, at most 50 in a session, and resolves when all are open. */
export async function openAsks(client: Http2Client, filePath: string, asks: number): Promise<void> {
  for (let from = 0; from < asks; from += 50) {
    const sessionId = await openSession(client);
    const count = Math.min(50, asks - from);
    for (let index = 0; index < count; index += 1) {
      const call = { sessionId, callId: `call_${index}`, tool: "read", input: { filePath }, waitMs: 0 };
      await client.connect(ToolService.method.callTool, call);
    }
    let open = 0;
    while (open < count) {
      const page = { sessionId, pageSize: count };
      open = (await client.connect(PermissionService.method.listPermissions, page)).permissions.length;
    }
  }
}
