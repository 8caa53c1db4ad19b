import type { AskStore } from "./ports/asks.ts";
import type { AuditLog } from "./ports/audit.ts";
import type { GrantStore } from "./ports/grants.ts";

export type {
  AskRecord,
  AskStore,
  EndedWait,
  SettledCall,
  SettledStart,
  Settlement,
  SettleResult,
} from "./ports/asks.ts";
export type { AuditLog } from "./ports/audit.ts";
export type { GrantFilter, GrantStore } from "./ports/grants.ts";

/**
 * All ports of approval, one interface per family. Every method is one atomic step and resolves when it is durable. A module
 * depends on the families it uses, not on this type.
 */
export interface PermissionStore extends AskStore, GrantStore, AuditLog {}
