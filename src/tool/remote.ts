import type { FilePart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** The run of a body in a worker, as the start mark of its call names it. */
export interface RemoteMark {
  /** Principal of the worker's token. */
  principal: string;
  /** ID of the worker's process. */
  instance: string;
  /** Number of its connection. */
  connection: number;
  /** ID of the run, which cannot be guessed; see `assignmentOf`. */
  assignment: string;
  /** Time for which the process is waited for when it is away, in ms. */
  resumeMs: number;
}

/** Capacity of a connected worker that is reserved for one body. */
export interface Reservation {
  readonly mark: RemoteMark;
  /** Name of the fleet and ID of the build, for the record of the call. */
  readonly worker: string;
  readonly buildId: string;
  /** Gives the capacity back. May be called more than once. */
  free(): void;
}

/** A session and the call in it. */
export interface RemoteCall {
  readonly sessionId: string;
  readonly callId: string;
}

/** The workers that run the bodies of a tool. */
export interface RemoteBodies {
  /** Time for which a call waits for capacity, in ms, where the call does not set one. */
  readonly queueMs: number;
  /** Reserves capacity of a worker that is connected to this replica; undefined if none has any now. */
  reserve(call: RemoteCall): Reservation | undefined;
  /** True while a process has not entered the body of a call and is not offered it again: other calls are served before it. */
  isPaused(call: RemoteCall): boolean;
  /** Reports why no worker takes a call, for its error. */
  unavailable(call: RemoteCall): Promise<string>;
}

/** The run of a remote body, for its `execute`. */
export interface RemoteRun {
  readonly mark: RemoteMark;
  /** True for a body that another run of the call entered: it is continued, and not entered. */
  readonly isAdopted: boolean;
  /** Number of bytes of its output that were stored before this run. */
  readonly storedBytes: number;
  /** Files of calls that it made before this run. */
  readonly files: readonly FilePart[];
  /** Resolves when all output so far is stored and emitted, with its number of bytes. */
  stored(): Promise<number>;
}

/** Returns the call that an assignment names; undefined for a text that is none. */
export function callOfAssignment(assignment: string): RemoteCall | undefined {
  const [, sessionId, callId] = /^[\w-]{22}\/([^/]+)\/(.+)$/s.exec(assignment) ?? [];
  return sessionId === undefined || callId === undefined ? undefined : { sessionId, callId };
}

/** Makes the assignment of a call from 128 random bits in base64url. */
export function assignmentOf(random: string, { sessionId, callId }: RemoteCall): string {
  return `${random}/${sessionId}/${callId}`;
}
