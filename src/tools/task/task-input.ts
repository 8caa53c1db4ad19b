import { createHash } from "node:crypto";
import * as z from "zod";
import type { Subagents } from "../../agents/runners/subagents.ts";
import type { OfferContext } from "../../tool/tool.ts";

/** Other names of fields, which opencode and models that know it write. */
const aliases = { subagent_type: "agent", task_id: "session_id", sessionID: "session_id" } as const;

/** Moves values of other names to the names here; values that differ are an error. */
function renamed(value: unknown, ctx: z.RefinementCtx): unknown {
  if (typeof value !== "object" || value === null) return value;
  const fields: Record<string, unknown> = { ...value };
  for (const [alias, name] of Object.entries(aliases)) {
    const given = fields[alias];
    delete fields[alias];
    if (given === undefined || given === null || given === "") continue;
    const known = fields[name];
    if (known !== undefined && known !== "" && known !== given)
      ctx.addIssue({ code: "custom", path: [name], message: `${name} and ${alias} differ; send one of them` });
    fields[name] = given;
  }
  return fields;
}

/** Input of the tools that start a subagent. */
export const taskInput = z.preprocess(
  renamed,
  z.object({
    description: z.string().trim().min(1).max(256).describe("The task in three to five words"),
    prompt: z.string().min(1).max(262_144).describe("What the agent is to do, and what it is to return"),
    agent: z
      .string()
      .min(1, "Agent parameter is required. Name one of the agents that the description lists.")
      .max(64)
      .describe("The agent that does it (also: subagent_type)"),
    session_id: z
      .string()
      .max(64)
      .optional()
      .transform((id) => (id === "" ? undefined : id))
      .describe("The session of an earlier task, to continue it (also: task_id)"),
  }),
);

/** Decoded input of the tools that start a subagent. */
export type TaskInput = z.output<typeof taskInput>;

/** Returns the id of the session of a call's subagent: the same each time, so that a call that starts again has one session. */
export function childSessionOf({ sessionId, callId }: { sessionId: string; callId: string }): string {
  return `ses_${createHash("sha256").update(`${sessionId} ${callId}`).digest("hex").slice(0, 40)}`;
}

/** Lists the agents that a task can start: those that have a runner and that no rule denies. */
export function describeAgents(subagents: Pick<Subagents, "startable">, { judge, principal }: OfferContext): string {
  const agents = subagents
    .startable(principal)
    .filter(([name]) => judge({ permission: "task", patterns: [name] }).action !== "deny");
  if (agents.length === 0)
    return "No agent can be started now, since no agent runner is connected for one that you may use: do the work yourself.";
  return ["Agents:", ...agents.map(([name, description]) => `- ${name}: ${description}`)].join("\n");
}
