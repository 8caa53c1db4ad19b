import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import type { Subject } from "../policy/subject.ts";
import type { Tool } from "../tool/tool.ts";
import type { CallHooks } from "./call-hooks.ts";
import type { StartGate } from "./children.ts";
import type { CallObservation } from "./observer.ts";
import type { CallOutput } from "./output.ts";
import type { Judged } from "./planning.ts";
import type { CallRecord, Fence } from "./ports.ts";
import type { createProgress } from "./progress.ts";
import type { OpenSession } from "./sessions.ts";

/** What a run and whoever launched it have to do with each other. */
export interface Hold {
  /** What the call waits for before it starts, besides people. */
  gate?: StartGate | undefined;
  /** Whether the lease is sure to be alive. */
  isSure(): boolean;
  /** The start mark is about to be written: from then on only this run can end the call. */
  starting(): void;
}

/** A call on its way, as its steps share it. */
export interface Running {
  record: CallRecord;
  readonly opened: OpenSession;
  readonly controller: AbortController;
  readonly signal: AbortSignal;
  readonly fence: Fence;
  readonly hold: Hold;
  readonly observed: CallObservation;
  /** What was resolved for it. */
  tool?: Tool;
  /** Its asks as they were read with the record; not known of one that was just opened or claimed. */
  asks?: readonly AskRecord[];
  readonly hooks: CallHooks;
  progress?: ReturnType<typeof createProgress>;
  output?: CallOutput;
}

/** A call that may start as soon as it is accepted. */
export interface Ready extends Judged {
  tool: Tool;
  input: unknown;
  /** The running part. */
  start: ToolPart;
  /** What lets it start. */
  decision: DecisionRecord;
  /** A call that repeats those before it more often than this takes the steps one by one, of which one may be to ask. */
  maxRepeats: number;
}

/** What the store knows this hold of the call by. */
export function fenceOf({ ref, owner, epoch }: CallRecord): Fence {
  return { ref, owner, epoch };
}

/** Whose call it is, as policy and grants see it. */
export function subjectFor(
  opened: Pick<OpenSession, "session" | "ancestors" | "workspace"> | Pick<OpenSession, "workspace">,
  agent: string,
  tool: Tool,
): Subject {
  return {
    session: "session" in opened ? opened.session : undefined,
    ancestors: "ancestors" in opened ? opened.ancestors : [],
    agent,
    workspace: workspaceRoot(opened.workspace.name),
    directory: opened.workspace.directory,
    tool: tool.name,
    binding: tool.permissionBinding,
  };
}

/** Whose a call is that is on its way. */
export function subjectOf({ opened, record }: Running, tool: Tool): Subject {
  return subjectFor(opened, record.part.agent, tool);
}
