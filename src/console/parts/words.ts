import {
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
  PermissionOutcome,
  PermissionReason,
  type PermissionRule,
  type PermissionSettled,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { visibleText } from "./visible-text.ts";

/** A length of time, such as `340 ms`, `1.2 s` or `14 min`. */
export function durationOf(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  if (ms < 60_000) return `${Math.round(ms / 1_000)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1_000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

/** How long there is to answer, such as `4:05` or `2 h`. */
export function timeLeft(ms: number): string {
  if (ms <= 0) return "time is up";
  const seconds = Math.floor(ms / 1_000);
  if (seconds >= 7_200) return `${Math.floor(seconds / 3_600)} h left`;
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} left`;
}

/** A moment, in the reader's own way of writing it. */
export function momentOf(ms: number): string {
  return new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** A size, such as `812 bytes` or `12.3 KiB`. */
export function sizeOf(bytes: number): string {
  if (bytes < 1_024) return `${bytes} bytes`;
  if (bytes < 1_048_576) return `${(bytes / 1_024).toFixed(1)} KiB`;
  return `${(bytes / 1_048_576).toFixed(1)} MiB`;
}

/** How an ask ended, and by whom: `Rejected by alice: use the staging database`. */
export function settledWords(settled: PermissionSettled | "unseen"): string {
  if (settled === "unseen") return "Settled while this page was not connected";
  const { outcome, by, message } = settled;
  const who = by === "" ? "" : ` by ${visibleText(by)}`;
  const why = message === "" ? "" : `: ${visibleText(message)}`;
  return `${outcomes.get(outcome) ?? "Settled"}${who}${why}`;
}

/** Whether the call may go on. */
export function isApproval(settled: PermissionSettled | "unseen"): boolean {
  return (
    settled !== "unseen" && (settled.outcome === PermissionOutcome.ONCE || settled.outcome === PermissionOutcome.ALWAYS)
  );
}

/** Why a pattern is asked, allowed or denied, in a sentence. */
export function whyOf({ action, reasonCode, layer, rule, reason }: PermissionDecision): string {
  const text = visibleText(reason);
  if (reasonCode === PermissionReason.NO_RULE && rule === undefined) {
    return action === PermissionAction.ALLOW ? "No rule asks about it or denies it." : "No rule covers it.";
  }
  if (reasonCode !== PermissionReason.RULE || rule === undefined) return `${text.replace(/^engine: /, "Always: ")}.`;
  return `${layers.get(layer) ?? "A rule"} says ${ruleWords(rule)}.`;
}

/** A rule as it is written in a configuration, on one line. */
export function ruleWords({ permission, pattern, action }: PermissionRule): string {
  return `${visibleText(permission)} “${visibleText(pattern)}” = ${actionWord(action)}`;
}

/** `allow`, `ask` or `deny`. */
export function actionWord(action: PermissionAction): string {
  return actions.get(action) ?? "ask";
}

/** Where a rule stands, for people. */
export function layerWords(layer: PermissionLayer): string {
  return layers.get(layer) ?? "A rule";
}

const actions = new Map<PermissionAction, string>([
  [PermissionAction.ALLOW, "allow"],
  [PermissionAction.ASK, "ask"],
  [PermissionAction.DENY, "deny"],
]);

const layers = new Map<PermissionLayer, string>([
  [PermissionLayer.DEFAULTS, "The built-in policy"],
  [PermissionLayer.CONFIG, "The configuration"],
  [PermissionLayer.AGENT, "The agent’s configuration"],
  [PermissionLayer.AGENT_LIMITS, "The agent’s limits"],
  [PermissionLayer.REQUEST, "The question itself"],
  [PermissionLayer.SESSION, "The session’s own rules"],
  [PermissionLayer.INHERITED, "A parent session"],
  [PermissionLayer.GRANT, "A grant"],
  [PermissionLayer.ENGINE, "Toolgate itself"],
  [PermissionLayer.WORKSPACE, "The workspace’s .opencode/config.toml"],
]);

const outcomes = new Map<PermissionOutcome, string>([
  [PermissionOutcome.ONCE, "Approved once"],
  [PermissionOutcome.ALWAYS, "Approved always"],
  [PermissionOutcome.REJECT, "Rejected"],
  [PermissionOutcome.EXPIRED, "Expired: nobody answered in time"],
  [PermissionOutcome.WITHDRAWN, "Withdrawn"],
  [PermissionOutcome.EDITED, "Edited"],
  [PermissionOutcome.DENIED, "Denied: the service is unattended"],
]);
