import type { RegisteredTool, WorkerHello, WorkerPlanned } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { WorkerRights } from "../../core/principal.ts";
import type { RemoteCall, RemoteRun } from "../../tool/remote.ts";
import type { HostedBody } from "../host.ts";
import type { WorkerMessage } from "../worker-connection.ts";
import type { IsClosed } from "./declared-tool.ts";
import type { AdoptingReports, WaitingBytes } from "./waiting-reports.ts";

/** The open connection of a worker. */
export interface WorkerLink {
  /** Its number, as the worker counts. */
  readonly connection: number;
  send(message: WorkerMessage): void;
  /** Ends it, with an error if there is one. */
  end(error?: Error): void;
}

/** A worker process that is connected to this replica, or that may return. */
export interface WorkerProcess {
  readonly principal: string;
  rights: WorkerRights;
  /** Its last hello. */
  hello: WorkerHello;
  /** Number of its last connection. */
  connection: number;
  /** Absent while it is away. */
  link: WorkerLink | undefined;
  /** Capacity as it declared it last. */
  capacity: number;
  isDraining: boolean;
  /** Its tools, with the outcome of their declaration. */
  tools: readonly RegisteredTool[];
  /** IDs of the definitions that it serves; `setDefinitions` replaces them. */
  definitions: ReadonlySet<string>;
  /** Names of the workspaces that it serves. */
  workspaces: ReadonlySet<string>;
  /** Definitions of the bodies for which capacity is taken, by assignment. */
  readonly taken: Map<string, string>;
  /** Bodies that were started or adopted, by assignment, until their calls have ended. */
  readonly bodies: Map<string, RemoteBody>;
  /** Reports that came while their bodies were being adopted, by assignment. */
  readonly adopting: Map<string, AdoptingReports>;
  /** Connection of each adoption that is under way, by assignment. */
  readonly moving: Map<string, number>;
  /** Waits for answers to `plan`, by plan id. */
  readonly plans: Map<string, (planned: WorkerPlanned) => void>;
  /** Time of its last message, in ms since the epoch. */
  seen: number;
  /** Runs while it is away. */
  timer: NodeJS.Timeout | undefined;
}

/** A body that a worker runs, from the start or the adoption of its call to the recorded end. It outlives connections. */
export interface RemoteBody extends HostedBody {
  readonly process: WorkerProcess;
  readonly tool: string;
  readonly remote: RemoteRun;
  readonly isClosed: IsClosed;
  /** All bodies of the replica, by call. */
  readonly bodies: Map<string, RemoteBody>;
  /** Called when the process has not entered it, and will not enter it. */
  refused(process: WorkerProcess, call: RemoteCall, reason: string): void;
  /** Resolves when all reports so far are handled: output, progress and result are handled in order. */
  handled: Promise<void>;
  /** Bytes of output and of attachments in reports that are not handled yet. */
  readonly waiting: WaitingBytes;
  /** A receipt is being waited for; output that comes meanwhile needs another one. */
  receipt: "none" | "waiting" | "again";
  /** The worker has reported of it, so it cannot say later that it never entered it. */
  isEntered: boolean;
}

/** Returns the key of a call among the bodies of a replica. */
export function keyOfCall({ sessionId, callId }: RemoteCall): string {
  return `${sessionId}/${callId}`;
}

/** Sends a message to a process; one that is away gets nothing. */
export function sendTo({ link }: Pick<WorkerProcess, "link">, message: WorkerMessage): void {
  link?.send(message);
}

/**
 * Lets a process that drains leave, if nothing of it is under way: from then on it gets no body. It waits for this, since no record would
 * show later that a body whose start was lost with its connection had never been entered.
 */
export function dismissDrained(process: WorkerProcess): void {
  const { isDraining, taken, bodies } = process;
  if (isDraining && taken.size === 0 && bodies.size === 0)
    sendTo(process, { case: "leave", value: { stop: true, withinMs: 0 } });
}

/** Returns how many more bodies a process takes, of a definition that it may limit. */
export function capacityFor(
  { link, isDraining, capacity, taken, hello: { tools }, definitions }: WorkerProcess,
  definitionId: string,
  tool: string,
): number {
  if (link === undefined || isDraining || !definitions.has(definitionId)) return 0;
  const max = tools.find(({ name }) => name === tool)?.maxConcurrent ?? 0;
  if (max === 0) return capacity - taken.size;
  const same = [...taken.values()].filter((each) => each === definitionId).length;
  return Math.min(capacity - taken.size, max - same);
}
