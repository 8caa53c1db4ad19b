import type { PermissionEscalation, PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Principal } from "../core/principal.ts";

/** The event that a notice reports: a request was opened, or settled. */
export type NoticePhase = "opened" | "settled";

/** Identifies a notice. */
export interface NoticeKey {
  /** Id of the request. */
  readonly ask: string;
  /** Name of the channel. */
  readonly channel: string;
  /** Id of the person, in a channel that addresses persons; otherwise empty. */
  readonly recipient: string;
}

/** A notice of one permission request, written by the step that opens or escalates the request. */
export interface NewNotice extends NoticeKey {
  /** Time from which on it is delivered (ms since the epoch). */
  readonly dueAt: number;
  /** The replica that delivers it at once, under a lease; empty: the first one that claims it when it is due. */
  readonly owner: string;
  readonly leaseMs: number;
  /** Reason why it is never delivered; empty if it is delivered. */
  readonly dead: string;
}

/** A notice that this replica has claimed. */
export interface ClaimedNotice extends NoticeKey {
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
  | { readonly result: "retry"; readonly at: number; readonly why: string }
  /** Never deliver again. */
  | { readonly result: "dead"; readonly why: string };

/** States of a stored notice: `opened` or `settled` while an attempt is due, `sent` between both, and the others at the end. */
export const noticeStates = ["opened", "sent", "settled", "closed", "dead"] as const;

/** A stored notice. */
export interface StoredNotice extends NoticeKey {
  readonly state: (typeof noticeStates)[number];
  /** Failed attempts in this state. */
  readonly attempts: number;
  /** Time from which on the next attempt may be made. */
  readonly dueAt: number;
  /** Reason of the last failure. */
  readonly why: string;
  /** Time at which it was written. */
  readonly opened: number;
}

/** The notices of a channel that are to be delivered. */
export interface NoticeQueue {
  readonly waiting: number;
  /** Time from which on the oldest one may be claimed. */
  readonly oldestDue: number;
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
    notice: Pick<ClaimedNotice, keyof NoticeKey | "phase">,
    owner: string,
    result: NoticeResult,
  ): Promise<void>;
  /** Returns the queue of each channel that has one. */
  countNotices(): Promise<ReadonlyMap<string, NoticeQueue>>;
  /** Returns the last notices, newest first. */
  listNotices(): Promise<readonly StoredNotice[]>;
  /** Reads a request with its settlement; undefined once its session was removed. */
  findAsk(id: string): Promise<{ request: PermissionRequest; settled?: PermissionSettled } | undefined>;
}

/** The last record of a chain that a receiver of the audit has accepted; number 0 and no hash before the first one. */
export interface ExportCursor {
  readonly root: string;
  readonly seq: number;
  readonly hash: string;
}

/** Cursors of the receivers of the audit, by the names of the receivers. The store is opened with those names. */
export interface ExportStore {
  /** claim_export: takes the lease of a receiver, or renews it; false while another replica holds it. */
  claimExport(receiver: string, owner: string, leaseMs: number): Promise<boolean>;
  /** Lists the cursors of chains that may have records behind them, after the first `skip` ones. */
  pendingExports(receiver: string, page: { skip: number; limit: number }): Promise<readonly ExportCursor[]>;
  /** note_export: moves cursors, and drops chains that had no more records at a time; false if the owner has lost the lease. */
  noteExport(exported: NotedExport): Promise<boolean>;
  /** Counts the records that retention removed although a receiver had not accepted them. */
  exportLosses(): Promise<ReadonlyMap<string, number>>;
}

/** Progress of one receiver. */
export interface NotedExport {
  readonly receiver: string;
  readonly owner: string;
  readonly cursors: readonly ExportCursor[];
  /** Roots of chains without a record behind the cursor. */
  readonly ended: readonly string[];
  /** Time of the store before they were read. */
  readonly readAt: number;
}

/** Content of one message of a channel: a request, its outcome, or a test. */
export type Notice = {
  /** Identifies this notice in all attempts, for receivers that get it twice. */
  readonly id: string;
  /** Link to the request, or to the service, without a credential. */
  readonly url: string;
  readonly ref: string;
  readonly recipient: string;
} & (
  | { readonly phase: "opened"; readonly request: PermissionRequest }
  | { readonly phase: "settled"; readonly request: PermissionRequest; readonly settled: PermissionSettled }
  | { readonly phase: "test" }
);

/** A way to reach people. A channel announces; it never answers, and nothing that it sends is a credential. */
export interface Channel {
  readonly kind: string;
  readonly content: ChannelContent;
  send(notice: Notice, signal: AbortSignal): Promise<ChannelAnswer>;
  /** Ids of the persons that it reaches now; absent: it addresses no persons, and gets one notice of a request. */
  people?(): readonly string[];
}

/** Answer of a provider. `why` is what it answered, `next` what the operator can do; neither has an address or a secret. */
export type ChannelAnswer =
  | { readonly answer: "accepted"; readonly why?: string; readonly ref?: string }
  /** Not accepted now; `afterMs` is the time that the provider asks to wait. */
  | { readonly answer: "retry"; readonly why: string; readonly next?: string; readonly afterMs?: number }
  /** This message is never accepted; with `disable` no other one is, until the service starts again. */
  | { readonly answer: "refused"; readonly why: string; readonly next?: string; readonly disable?: boolean };

/** The part of a request that leaves the service. */
export type ChannelContent = "none" | "risk" | "full";

/** The notices of requests that the life of a call opens. */
export interface NoticeSender {
  /** Returns the notices of a request that is about to be opened, already claimed where this replica can send them at once. */
  noticesOf(request: PermissionRequest, workspace: string): NewNotice[];
  /** Returns the notices of steps that a request is about to take. */
  escalationsOf(ask: string, steps: readonly Pick<PermissionEscalation, "to" | "channels">[]): NewNotice[];
  /** Delivers what a step of this replica wrote as claimed by it. */
  opened(notices: readonly NewNotice[]): void;
}

/** A channel with what this replica delivered to it since it started. */
export interface ChannelStatus extends NoticeQueue {
  readonly name: string;
  readonly kind: string;
  readonly content: ChannelContent;
  readonly disabled: boolean;
  /** Times of the last accepted and the last failed attempt; 0: none. */
  readonly lastAccepted: number;
  readonly lastFailed: number;
  readonly lastFailure: string;
  readonly counts: ChannelCounts;
}

/** Counters of a channel. */
export interface ChannelCounts {
  sent: number;
  updated: number;
  retried: number;
  dead: number;
  /** Sum of the times from the opening of a request to the provider's acceptance, in ms. */
  delayMs: number;
}

/** Browsers that receive pushes. */
export interface PushDesk {
  /** Returns the public key with which a browser subscribes. */
  publicKey(): Promise<Uint8Array>;
  /** Stores a browser; returns true if its endpoint is a new one. */
  subscribe(principal: PushOwner, browser: BrowserKeys): Promise<boolean>;
  /** Removes a browser of this credential; one that is not known is no failure. */
  unsubscribe(principal: PushOwner, endpoint: string): Promise<void>;
}

/** The credential with which a browser subscribes, and its person. */
export type PushOwner = Pick<Principal, "id" | "identity">;

/** Subscription of a browser, as it made it. */
export interface BrowserKeys {
  readonly endpoint: string;
  readonly p256dh: Uint8Array;
  readonly auth: Uint8Array;
  readonly pushKey: Uint8Array;
}

/** The channels, as operators see them. */
export interface ChannelDesk extends Pick<NoticeStore, "listNotices" | "findAsk"> {
  channels(): Promise<readonly ChannelStatus[]>;
  /** Sends a test notice and returns the answer; undefined if there is no such channel. */
  test(channel: string, recipient: string): Promise<ChannelAnswer | undefined>;
}
