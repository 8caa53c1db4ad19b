import type { JsonValue } from "@bufbuild/protobuf";

/** Lets the body of a started call be entered again, by another replica or after a restart. */
export interface Durability {
  /** True if what the body waits for goes on without its replica. Otherwise the call is lost with its replica. Default: true. */
  survives?(call: StartedCall): boolean;
  /** True if this replica can enter the body now. Default: true. */
  canResume?(call: StartedCall): boolean;
  /** Time in which a replica must enter the body of a call without an owner, in ms; later the call is lost. Default: 60,000. */
  waitMs?: number;
  /** Returns what the error of a lost call says in addition; empty if nothing. */
  lossNote?(call: StartedCall): string;
}

/** A started call of a durable tool. */
export interface StartedCall {
  sessionId: string;
  callId: string;
  /** The value that the body stored last. */
  memo: JsonValue | undefined;
}

/** State of a call of a durable tool. */
export interface DurableState {
  /** True if the body is entered again. */
  readonly isResumed: boolean;
  /** The value that was stored last, also by an earlier run of the body. */
  readonly memo: JsonValue | undefined;
  /** Replaces the memo, which is deleted with the end of the call. Await it before the effect that it describes. */
  store(memo: JsonValue): Promise<void>;
  /** True if the signal was aborted because another run of the body goes on with the call: then stop nothing that it waits for. */
  isLeft(): Promise<boolean>;
}
