import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import {
  WorkerProgressSchema,
  type WorkerReceipt,
  type WorkerReportSchema,
  type WorkRequestSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";

/** A message of a worker. */
export type SentMessage = NonNullable<MessageInitShape<typeof WorkRequestSchema>["message"]>;

type Report = MessageInitShape<typeof WorkerReportSchema>;

/** An assignment that is not over, with everything of it that the next connection has to send again. */
interface HeldAssignment {
  readonly isEntered: boolean;
  progress: Report | undefined;
  /** Output without a receipt, and all of the attachments, in order. */
  output: { blob: number; end: number; length: number; report: Report }[];
  /** Requests without an answer, by number. */
  readonly requests: Map<number, Report>;
  result: Report | undefined;
  /** Wake what waits for receipts. */
  readonly waiting: (() => void)[];
}

/** The assignments of a worker that are not over. */
export type HeldAssignments = ReturnType<typeof createHeldAssignments>;

/** Creates it, empty. */
export function createHeldAssignments() {
  const all = new Map<string, HeldAssignment>();
  const made = {
    /** Maximum number of bytes of one assignment without a receipt. */
    windowBytes: Number.POSITIVE_INFINITY,
    get size() {
      return all.size;
    },
    has: (assignment: string): boolean => all.has(assignment),
    /** Adds one; false for a body that is not entered and never will be. */
    open(assignment: string, isEntered: boolean): void {
      const empty = { output: [], progress: undefined, result: undefined };
      all.set(assignment, { isEntered, ...empty, requests: new Map(), waiting: [] });
    },
    /** Keeps a message for the next connection; resolves when its body may write more. */
    async keep(message: SentMessage): Promise<void> {
      if (message.case !== "report") return;
      const held = all.get(message.value.assignment ?? "");
      if (!held) return;
      keepReport(held, message.value);
      while (all.get(message.value.assignment ?? "") === held && unstoredBytes(held) > made.windowBytes)
        await new Promise<void>((resolve) => held.waiting.push(resolve));
    },
    /** Drops what is stored. */
    receive({ assignment, stored }: WorkerReceipt): void {
      const held = all.get(assignment);
      if (!held) return;
      held.output = held.output.filter(({ blob, end }) => end > Number(stored[blob] ?? 0n));
      for (const wake of held.waiting.splice(0)) wake();
    },
    /** Drops a request that was answered. */
    dropRequest: (assignment: string, number: number): void => void all.get(assignment)?.requests.delete(number),
    /** Drops an assignment that is over. */
    end(assignment: string): void {
      const held = all.get(assignment);
      all.delete(assignment);
      for (const wake of held?.waiting.splice(0) ?? []) wake();
    },
    /** The assignments whose bodies were entered. */
    entered: (): string[] => [...all].flatMap(([assignment, { isEntered }]) => (isEntered ? [assignment] : [])),
    /** Everything that has to be sent again. */
    messages: (): SentMessage[] => [...all.values()].flatMap(reportsOf).map((value) => ({ case: "report", value })),
  };
  return made;
}

function keepReport(held: HeldAssignment, value: Report): void {
  const { report } = value;
  switch (report?.case) {
    case "progress": {
      // Later fields replace earlier ones; those that are absent stay.
      const fields = progressOf(held.progress, value);
      held.progress = { ...value, report: { case: "progress", value: create(WorkerProgressSchema, fields) } };
      return;
    }
    case "output": {
      const { blob = 0, offset = 0n, data } = report.value;
      const length = data?.length ?? 0;
      held.output.push({ blob, length, end: Number(offset) + length, report: value });
      return;
    }
    case "request":
      held.requests.set(report.value.number ?? 0, value);
      return;
    case "result":
      held.result = value;
      // Its body waits for no answer any more.
      held.requests.clear();
  }
}

/** Returns the fields of two reports of progress, of which the later ones count. */
function progressOf(...reports: readonly (Report | undefined)[]): { title?: string; metadata?: JsonObject } {
  const fields: { title?: string; metadata?: JsonObject } = {};
  for (const each of reports) {
    if (each?.report?.case !== "progress") continue;
    const { title, metadata } = each.report.value;
    Object.assign(fields, title !== undefined && { title }, metadata && { metadata });
  }
  return fields;
}

/** Attachments have no receipts, so a body does not wait for those. */
const unstoredBytes = ({ output }: HeldAssignment) =>
  output.reduce((sum, { blob, length }) => (blob === 0 ? sum + length : sum), 0);

/** In the order in which the service has to see them: nothing follows a result. */
function reportsOf({ progress, output, requests, result }: HeldAssignment): Report[] {
  return [
    ...(progress ? [progress] : []),
    ...output.map(({ report }) => report),
    ...requests.values(),
    ...(result ? [result] : []),
  ];
}
