import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { HiddenPathsSchema, type Preview, PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { visible } from "../core/visible.ts";
import type { Layers } from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import type { Policy } from "../policy/policy.ts";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import type { ResolvedPath } from "../tool/resolved-path.ts";
import type { Plan } from "../tool/tool.ts";
import { type Judged, type Planning, withinPlanningTime } from "./planning.ts";

/** Result of a tool's own checks before a call runs. */
export interface Inspected {
  /** Builds the preview; absent if the call is denied or if a preview would reveal what `read` does not allow. */
  preview?(): Promise<Preview>;
  /** What approvers cannot be shown, each as a text. */
  missing?: readonly string[];
  /** The tool's check that failed. */
  problem?: ToolFailure;
}

const maxDiffBytes = 128 * 1024;

/** Runs the tool's checks and prepares the preview, unless the call is denied or they would reveal what may not be read. */
export async function inspectCall(
  { policy }: Pick<Planning, "policy">,
  { plan, verdict, outside, files }: Judged,
  layers: Layers,
): Promise<Inspected> {
  if (verdict.action === PermissionAction.DENY || !plan.inspect) return {};
  const concealed = (plan.reveals ?? []).filter((path) => !mayReveal(policy, path, layers));
  if (concealed.length > 0) return { missing: hiddenChanges(plan, concealed) };
  try {
    const { preview, hidden } = await withinPlanningTime(plan.inspect());
    if (!preview) return {};
    return {
      async preview() {
        const found = await hidden?.({ outside, files });
        return Object.assign(visiblePreview(preview()), found && { hidden: create(HiddenPathsSchema, found) });
      },
    };
  } catch (cause) {
    if (cause instanceof ToolFailure) return { problem: cause };
    // A file changed during the inspection. Nothing is approved yet, so it is a failed check like any other.
    if (cause instanceof ChangedAfterApproval) return { problem: new ToolFailure(cause.message, { cause }) };
    throw cause;
  }
}

function mayReveal(policy: Policy, path: ResolvedPath, layers: Layers): boolean {
  if (path.external) return false;
  const ask = { permission: "read", patterns: [path.pattern], paths: [path.absolute] };
  return strictest(policy.judge(ask, layers)) === PermissionAction.ALLOW;
}

/** Names the files that the call changes and of which approvers must not see the present text. */
function hiddenChanges({ asks }: Plan, concealed: readonly ResolvedPath[]): string[] {
  const changed = new Set(asks.flatMap(({ permission, paths = [] }) => (permission === "edit" ? paths : [])));
  return concealed
    .filter(({ absolute }) => changed.has(absolute))
    .map(({ pattern }) => `how ${pattern} changes: reading its present text needs approval too`);
}

/** Cuts the diff of a preview to what an ask holds; `url` names where the whole diff is stored. */
export function cutPreview(preview: Preview, url = ""): Preview {
  const bytes = Buffer.from(preview.diff);
  if (bytes.length <= maxDiffBytes) return preview;
  return { ...preview, diff: bytes.subarray(0, bytes.lastIndexOf(10, maxDiffBytes)).toString(), url };
}

/** Makes invisible characters of a preview visible to approvers. */
export function visiblePreview({
  diff = "",
  command = "",
  paths = [],
  hosts = [],
  additions = 0,
  deletions = 0,
  text = "",
}: MessageInitShape<typeof PreviewSchema>): Preview {
  return create(PreviewSchema, {
    diff: visible(diff),
    command: visible(command),
    paths: paths.map(visible),
    hosts: hosts.map(visible),
    additions,
    deletions,
    text: visible(text),
  });
}
