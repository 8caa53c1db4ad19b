import { PermissionLayer, type PermissionRule, type RuleMatch } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import { checkRules, type LayersFor } from "../policy/layers.ts";
import type { Layers } from "../policy/model.ts";
import type { Subject } from "../policy/subject.ts";
import type { ForeignTools } from "../tool/foreign-tools.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import type { Planning } from "./planning.ts";
import type { CallRecordReader, StoreClock, ToolMemory } from "./ports.ts";
import type { OpenSession, Sessions } from "./sessions.ts";

/** Dependencies of the planner. */
export interface PlannerParts extends Planning {
  sessions: Sessions;
  registry: Registry;
  foreign: ForeignTools;
  hooks: HookChain;
  store: CallRecordReader & ToolMemory & StoreClock;
  /** Returns where a rule that matched is written, as FILE:LINE; empty for a rule of no file. */
  placeOf(match: RuleMatch, subject: Pick<Subject, "workspace" | "directory" | "agent">): string;
  askMs: number;
}

/** The session of a question, or only a workspace. */
export interface Scope extends Pick<OpenSession, "workspace" | "ancestors"> {
  session?: Session;
}

/** Opens the session that a question names, or without one the workspace. */
export async function openScope(
  { sessions }: PlannerParts,
  principal: Principal,
  sessionId: string,
  workspace = "",
): Promise<Scope> {
  if (sessionId !== "") return await sessions.open(principal, sessionId, "read");
  return { workspace: await sessions.openNamed(principal, workspace || "default"), ancestors: [] };
}

/** Returns the layers of a question: those of the subject and, last, the rules of the question; with `onlyRules` these alone. */
export function questionLayers(
  { layersFor }: PlannerParts,
  subject: LayersFor,
  { rules, onlyRules }: { rules: readonly PermissionRule[]; onlyRules: boolean },
): Layers {
  const own: Layers = onlyRules ? { wide: [], narrow: [] } : layersFor(subject);
  if (rules.length === 0) return own;
  checkRules("rules", rules);
  return { ...own, wide: [...own.wide, { layer: PermissionLayer.REQUEST, rules }] };
}
