import { createHash, hash } from "node:crypto";
import { stat } from "node:fs/promises";
import type { JsonObject } from "@bufbuild/protobuf";
import { questionPermission } from "../core/ask.ts";
import { canonicalJson } from "../core/json.ts";
import type { Plan, Tool } from "../tool/tool.ts";
import type { CallDecision, Planning } from "./decide.ts";
import type { OpenSession } from "./sessions.ts";

/**
 * Digest that an approval is bound to: the tool's definition, the canonical input (after before hooks), the workspace, the
 * working directory with its inode, the environment, the content of the files that will change or run, the text that the plan has read, and the rules.
 */
export async function approvalDigest(
  { policyDigest }: Pick<Planning, "policyDigest">,
  tool: Tool,
  input: JsonObject,
  { plan, bound }: Pick<CallDecision, "plan" | "bound">,
  { workspace }: Pick<OpenSession, "workspace">,
  /** Code that counts: `named` leaves out the rest of the workspace; `none` is for a request that holds for it as it is at the start. */
  code: "all" | "named" | "none" = "all",
): Promise<string> {
  const { files, code: named, tree } = await bound();
  const whole = {
    definition: tool.definition.definitionId,
    input,
    workspace: workspace.directory,
    cwd: plan.cwd === undefined ? null : [plan.cwd, await inodeOf(plan.cwd)],
    env: { ...plan.env },
    files,
    ...(code !== "none" && { code: named }),
    ...(code === "all" && tree && { tree: tree.digest }),
    ...(plan.contentDigest !== undefined && { content: plan.contentDigest }),
    asks: plan.asks.map(({ permission, patterns }) => ({ permission, patterns: [...patterns] })),
    // An answer to questions approves nothing, so a change of the rules does not lose it; they are judged again anyway.
    policy: isOnlyQuestions(plan) ? null : policyDigest(),
  };
  return createHash("sha256").update(canonicalJson(whole)).digest("hex");
}

function isOnlyQuestions({ asks }: Plan): boolean {
  return asks.length > 0 && asks.every(({ permission }) => permission === questionPermission);
}

/** Returns the inode that a path leads to now, which differs for another directory of the same name. */
async function inodeOf(path: string): Promise<string> {
  return await stat(path, { bigint: true }).then(
    ({ ino }) => String(ino),
    () => "none",
  );
}

/** Digest of a request: two calls are the same request if tool and canonical input as sent are equal. */
export function digestOfRequest(tool: string, canonicalInput: string): string {
  return hash("sha256", `${tool}\n${canonicalInput}`, "base64url");
}
