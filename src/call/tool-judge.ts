import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { ExpandedAsk, Layers } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import type { Policy } from "../policy/policy.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import type { Judge, Judgement } from "../tool/tool.ts";

/** Creates the function with which a tool evaluates the rules of its call. They are collected when it first does: most do not. `call` is for conditions. */
export function createToolJudge(
  policy: Pick<Policy, "judge" | "readDoubts" | "fileRules">,
  collect: () => Layers,
  call: Pick<ExpandedAsk, "call"> = {},
): Judge {
  let collected: Layers | undefined;
  const layers = () => (collected ??= collect());
  const judge = (ask: Ask): Judgement => {
    const decisions = policy.judge({ ...ask, ...call }, layers());
    const action = strictest(decisions);
    const { reason = "", rule } = decisions.find((decision) => decision.action === action) ?? {};
    return { action: wordFor(action), reason, ...(rule && { rule: rule.pattern }) };
  };
  return Object.assign(judge, {
    restrictedNameHints: (place: ReadPlace) => policy.readDoubts(place, layers()),
    fileRules: () => policy.fileRules(layers()),
  });
}

function wordFor(action: PermissionAction): Judgement["action"] {
  if (action === PermissionAction.ALLOW) return "allow";
  return action === PermissionAction.DENY ? "deny" : "ask";
}
