/** Names a call. `root` is the root of its session tree: a tree is what one atomic step can touch. */
export interface CallRef {
  root: string;
  sessionId: string;
  callId: string;
}
