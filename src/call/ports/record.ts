import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { RemoteMark } from "../../tool/remote.ts";
import type { TraceContext } from "../../tool/tool.ts";

/** Request data of a call, stored as JSON next to the part: enough for any replica to run the call. */
export interface CallSpec {
  /** The caller. */
  principal: string;
  /** The person of the caller, if that is another principal than the caller itself: the creator of the code with which it signed in. */
  person?: string | undefined;
  /** SHA-256 of the tool and the canonical input as sent; an attaching request must have the same. */
  requestDigest: string;
  /** Time limit in ms; 0 selects the tool's default. */
  timeoutMs: number;
  /** Time for which the call may wait for a worker with capacity, in ms; absent: the tool's default. */
  queueMs?: number;
  providerId: string;
  modelId: string;
  /** The definition that the call is bound to: the caller's, otherwise the one resolved at acceptance. */
  definitionId: string;
  /** The caller named the definition, so the call runs with no other one. */
  named?: true;
  /** Set by `rebindCall`: why the call is asked for again, and the time of it in ms since the epoch. */
  rebound?: { why: string; time: number };
  /** Time of acceptance, in ms since the epoch. */
  accepted: number;
  /** The caller's position in a trace, if the request named one. */
  trace?: TraceContext;
  /** Set for a call that its caller runs itself. */
  delegated?: Delegation;
  /** The call of the same session that made this one and waits for it. */
  parent?: string;
  /** Set for a call whose body only makes calls: once it is started every replica may enter it again. */
  durable?: true;
  /** The `bodyBinding` of the tool of a durable call. A tool with the same one may enter the body again. */
  bodyBinding?: string;
}

/** A delegated call as its host described it. */
export interface Delegation {
  /** The agent's kind and its own name of the tool. */
  kind: string;
  tool: string;
  /** Working directory of the agent: canonical if the disk is shared, otherwise as text. */
  directory: string;
  /** True if the host proved that it sees the same files as the service. */
  isDiskShared: boolean;
  /** Time for which permission requests stay open, in ms. */
  askMs: number;
  /** Time after the last answer in which a request must collect the approval, in ms. */
  collectMs: number;
}

/** A call as stored. */
export interface CallRecord {
  ref: CallRef;
  /** The last snapshot, with the whole input; `permission_ids` are the asks open now. */
  part: ToolPart;
  spec: CallSpec;
  /** Sequence number of the call's first event in the session's log. */
  openedSeq: number;
  /** Version of the record: raised by each transition and by each ask that is opened or settled. */
  version: number;
  /** Fencing token: raised by each claim. */
  epoch: number;
  /** The replica that holds a live lease; empty without one. */
  owner: string;
  /** Number of times that the tool body was entered. */
  attempts: number;
  /** Number of consecutive calls directly before this one in its session with the same tool and input. */
  repeats: number;
  /** Set once the before-hooks have run: the input is their result. */
  prepared?: true;
  /** State of other hooks, as JSON; deleted when the call ends. */
  hooked?: string;
  /** Value, as JSON, with which a replica enters the body of a started durable call again; deleted when the call ends. */
  memo?: string;
  /** Set when the cancellation of a running call was requested: the message for the model. */
  cancel?: string;
  /** Hash of the assignment with which the host of a delegated call reports; set by the start. */
  assignment?: string;
  /** The worker process that runs the body; set by the start, replaced by each adoption. */
  remote?: RemoteMark;
  /** Set while a call waits for a worker: the time at which it ends without one, in ms since the epoch. */
  queuedUntil?: number;
  /** Set if a failover since the call was accepted may have lost its start mark: its body must not be entered. */
  mayHaveRun?: true;
  /** Set on a tombstone: the call ended, and only its id, digest and terminal state remain. */
  expired?: true;
}

/** The right to write to a call: the replica that opened or claimed it, and the epoch that it got. */
export interface Fence {
  ref: CallRef;
  owner: string;
  epoch: number;
}
