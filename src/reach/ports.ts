import type { PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** The event that a notice reports: a request was opened, or settled. */
export type NoticePhase = "opened" | "settled";

/** A notice of one permission request to one channel, written by the step that opens the request. */
export interface NewNotice {
  /** Id of the request. */
  readonly ask: string;
  /** Name of the channel. */
  readonly channel: string;
  /** Time from which on it is delivered (ms since the epoch). */
  readonly dueAt: number;
  /** The replica that delivers it at once, under a lease; empty: the first one that claims it when it is due. */
  readonly owner: string;
  readonly leaseMs: number;
}

/** A notice that this replica has claimed. */
export interface ClaimedNotice {
  readonly ask: string;
  readonly channel: string;
  readonly phase: NoticePhase;
  /** Failed attempts of this phase. */
  readonly attempts: number;
  /** Name of the message at the provider; empty before it accepted one. */
  readonly ref: string;
}

/** Result of one attempt to deliver a notice. */
export type NoticeResult =
  | { readonly result: "accepted"; readonly ref: string }
  /** Deliver again at this time of the store. */
  | { readonly result: "retry"; readonly at: number }
  /** Never deliver again. */
  | { readonly result: "dead"; readonly why: string };

/** Notices that have ended, and the others. */
export interface NoticeCounts {
  readonly waiting: number;
  /** Time from which on the oldest one may be claimed; undefined if there is none. */
  readonly oldestDue?: number;
}

/**
 * Records of notices. `open_asks` writes them, and each step that settles a request makes those of it due again in the phase
 * `settled`; both cost nothing where a request has none.
 */
export interface NoticeStore {
  /** claim_notices: claims due notices of these channels that no live lease holds, the earliest first. */
  claimNotices(claim: {
    owner: string;
    leaseMs: number;
    channels: ReadonlyMap<string, number>;
  }): Promise<readonly ClaimedNotice[]>;
  /** note_notice: records the result of an attempt and releases the lease. A replica that lost the lease changes nothing. */
  noteNotice(
    notice: Pick<ClaimedNotice, "ask" | "channel" | "phase">,
    owner: string,
    result: NoticeResult,
  ): Promise<void>;
  countNotices(): Promise<NoticeCounts>;
  /** Reads a request with its settlement; undefined once its session was removed. */
  findAsk(id: string): Promise<{ request: PermissionRequest; settled?: PermissionSettled } | undefined>;
}

/** A request, and how it ended, as one channel reports it. */
export interface Notice {
  /** Identifies this notice in all attempts, for receivers that get it twice. */
  readonly id: string;
  readonly phase: NoticePhase;
  readonly request: PermissionRequest;
  readonly settled: PermissionSettled | undefined;
  /** Link to the request, without a credential. */
  readonly url: string;
  readonly ref: string;
}

/** A way to reach people. A channel announces; it never answers, and nothing that it sends is a credential. */
export interface Channel {
  send(notice: Notice, signal: AbortSignal): Promise<ChannelAnswer>;
}

/** Answer of a provider. */
export type ChannelAnswer =
  | { readonly answer: "accepted"; readonly ref?: string }
  /** Not accepted now; `afterMs` is the time that the provider asks to wait. */
  | { readonly answer: "retry"; readonly why: string; readonly afterMs?: number }
  /** This message is never accepted; with `disable` no other one is, until the service starts again. */
  | { readonly answer: "refused"; readonly why: string; readonly disable?: boolean };

/** The part of a request that leaves the service. */
export type ChannelContent = "none" | "risk" | "full";

/** The notices of requests that the life of a call opens. */
export interface NoticeSender {
  /** Returns the notices of a request that is about to be opened, already claimed where this replica can send them at once. */
  noticesOf(request: PermissionRequest, workspace: string): NewNotice[];
  /** Delivers what a step of this replica wrote as claimed by it. */
  opened(notices: readonly NewNotice[]): void;
}
