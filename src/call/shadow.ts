import { create } from "@bufbuild/protobuf";
import { PermissionAction, type PolicyShadow, PolicyShadowSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Logger } from "../core/logger.ts";
import { createMatchSteps, type ExpandedAsk, type Layers, type Subject } from "../policy/model.ts";
import { strictestOf } from "../policy/opinion.ts";
import type { Policy } from "../policy/policy.ts";

/** Rules that are judged beside those in force, and decide nothing. */
export interface ShadowRules {
  /** Returns their layers, without the files of git; undefined if there are none. */
  layersFor(subject: Subject): Layers | undefined;
  /** Counts a difference that is recorded. */
  count(from: PermissionAction, to: PermissionAction): void;
  /** Reports that these rules could not judge. */
  failed(cause: unknown): void;
}

/** A decision by the rules in force. */
interface Judged {
  subject: Subject;
  /** The asks as planned, and as they were expanded by the rules in force. */
  planned: readonly ExpandedAsk[];
  asks: readonly ExpandedAsk[];
  byRules: PermissionAction;
  gitFiles: Layers["gitFiles"];
  /** Expands the planned asks by other rules. */
  expand(layers: Layers): Promise<readonly ExpandedAsk[]>;
}

/**
 * Judges the same asks by the shadow rules. Returns the difference for the audit, which is counted when it is recorded; undefined if
 * there is none. No failure of these rules fails the call.
 */
export async function judgeShadow(
  policy: Pick<Policy, "judge" | "usesContainment">,
  { layersFor, count, failed }: ShadowRules,
  { subject, planned, asks, byRules, gitFiles, expand }: Judged,
): Promise<(() => PolicyShadow) | undefined> {
  const rules = layersFor(subject);
  if (!rules) return undefined;
  const shadow = create(PolicyShadowSchema);
  const layers: Layers = { ...rules, gitFiles, steps: createMatchSteps(), isUntraced: true };
  try {
    // Which asks a contained line has depends on the rules.
    const isHeld = planned.some(({ wall }) => wall) && policy.usesContainment(layers);
    const judged = isHeld ? await expand(layers) : asks;
    const decision = strictestOf(judged.flatMap((ask) => policy.judge(ask, layers)));
    shadow.action = decision?.action ?? PermissionAction.ALLOW;
    if (shadow.action === byRules) return undefined;
    if (decision) shadow.decision = decision;
  } catch (cause) {
    shadow.action = PermissionAction.UNSPECIFIED;
    failed(cause);
  }
  return () => {
    count(byRules, shadow.action);
    return shadow;
  };
}

/** Different failures that are logged; each is counted. */
const maxFailures = 10;

/** Creates the log of failures of shadow rules: each kind once, so that calls do not fill the log. */
export function createShadowFailures(log: Pick<Logger, "warn">): ShadowRules["failed"] {
  const known = new Set<string>();
  return (cause) => {
    const error = String(cause);
    if (known.has(error) || known.size === maxFailures) return;
    known.add(error);
    log.warn(
      "the rules of [shadow] could not judge a call, which they do not affect; further failures like this are only counted",
      {
        error,
      },
    );
  };
}
