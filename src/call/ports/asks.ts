import type { ToolProgress } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { QueuedCall } from "./leases.ts";
import type { CallSpec, Fence } from "./record.ts";

/** Opening of asks by the call that makes them; `AskStore` reads and settles them. */
export interface AskOpener {
  /**
   * open_asks: withdraws the call's open asks named in `withdraw`, and opens others. Returns false if the fence does not hold
   * or the call or the rules have changed since `version` or `rulesVersion`. Refuses with QUOTA_EXCEEDED. With `dueMs` the
   * same step ends the lease: the call waits without an owner.
   */
  openAsks(step: OpenAsksStep): Promise<boolean>;
  /**
   * rebind_call: replaces the request data of a call that has not started and has no live owner, and withdraws its open asks. The call
   * is an orphan at once, so that it is asked for again; a delegated one when its time to be collected is over. Returns false if the
   * call has changed since `version`, was started, or has an owner.
   */
  rebindCall(step: RebindCallStep): Promise<boolean>;
}

/** Arguments of `rebindCall`. */
export interface RebindCallStep {
  ref: CallRef;
  version: number;
  spec: CallSpec;
  /** Message of the withdrawals. */
  message: string;
}

/** Arguments of `openAsks`. */
export interface OpenAsksStep {
  fence: Fence;
  version: number;
  /** The rules version at which grants were consulted: an ask that a newer grant covers must not be opened. */
  rulesVersion?: number;
  asks: readonly PermissionRequest[];
  /** Ids of asks to withdraw. */
  withdraw: readonly string[];
  /** Message of the withdrawals. */
  message: string;
  /** Open asks that the session tree may have. */
  maxOpenAsks: number;
  decisions?: readonly DecisionRecord[];
  /** Ends the lease: the time until recovery checks the call, unless its last ask is settled before. */
  dueMs?: number;
  /**
   * Set, with `progress`, for a call that waits for a worker, which the other replicas are notified of. The first time counts, until the
   * call asks or starts.
   */
  queued?: QueuedCall;
  /** The event that says for what the call waits, if for no ask. */
  progress?: ToolProgress;
}
