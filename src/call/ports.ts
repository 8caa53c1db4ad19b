import type { PermissionStore } from "../approval/ports.ts";
import type { AskOpener } from "./ports/asks.ts";
import type { LeaseStore } from "./ports/leases.ts";
import type { EncodedMessages, EventLog } from "./ports/log.ts";
import type { Retention, StoreClock, StoreMembership } from "./ports/membership.ts";
import type { OutputStore } from "./ports/output.ts";
import type { CallRecordReader } from "./ports/records.ts";
import type { SessionStore } from "./ports/sessions.ts";
import type { ToolMemory } from "./ports/tool-memory.ts";
import type { CallTransitions } from "./ports/transitions.ts";

export type { RemoteMark } from "../tool/remote.ts";
export type { AskOpener, OpenAsksStep, RebindCallStep } from "./ports/asks.ts";
export type { LeaseStore, OrphanedCall, QueuedCall } from "./ports/leases.ts";
export type { EncodedMessages, EventLog, LogPage } from "./ports/log.ts";
export type { Retention, StoreClock, StoreMembership, StoreSafety } from "./ports/membership.ts";
export type { OutputStore } from "./ports/output.ts";
export type { CallRecord, CallSpec, Delegation, Fence } from "./ports/record.ts";
export type { CallRecordReader, CallWithAsks } from "./ports/records.ts";
export type { SessionStore } from "./ports/sessions.ts";
export type { ToolMemory } from "./ports/tool-memory.ts";
export type {
  CallTransitions,
  EndedChild,
  FinishCallStep,
  HostStart,
  NoteCallStep,
  OpenCallStep,
  OpenedCall,
  StartCallStep,
} from "./ports/transitions.ts";

/**
 * All ports of calls, one interface per family. Every method is one atomic step and resolves when it is durable. The domain
 * computes what a step writes; the store checks the guards, assigns the sequence numbers and writes everything or nothing.
 * `decisions` of a step are added to the audit of the tree if the step is taken. A module depends on the families it uses,
 * not on this type.
 */
export interface CallStore
  extends SessionStore,
    CallTransitions,
    CallRecordReader,
    AskOpener,
    LeaseStore,
    EventLog,
    EncodedMessages,
    ToolMemory,
    StoreMembership,
    StoreClock,
    Retention {}

/** An open store. `calls.close()` closes all of it. */
export interface Store {
  calls: CallStore;
  permissions: PermissionStore;
  outputs: OutputStore;
}
