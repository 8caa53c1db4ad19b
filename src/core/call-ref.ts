/** Identifies a call. `root` is the root of its session tree; an atomic step of the store stays within one tree. */
export interface CallRef {
  root: string;
  sessionId: string;
  callId: string;
}
