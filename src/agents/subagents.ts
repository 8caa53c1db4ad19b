import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { newId } from "../core/ids.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { AgentRunner, RunUpdate } from "./runner.ts";
import type { RunnerRegistry } from "./runner-registry.ts";

/** Sessions and calls of the service, as far as subagents need them. */
export interface SubagentHost {
  now(): number;
  /** Names and descriptions of the configured agents. */
  agents(): ReadonlyMap<string, string>;
  /** Returns true if the token of this principal may act as the agent. */
  mayActAs(principal: string, agent: string): boolean;
  findSession(id: string): Promise<{ session: Session; ancestors: readonly Session[] } | undefined>;
  openChildSession(child: {
    id: string;
    parent: Session;
    agent: string;
    title: string;
    startedBy: string;
  }): Promise<Session>;
  /** Lists the open calls of a session. */
  openCalls(sessionId: string): Promise<ToolPart[]>;
  /** Cancels the open calls of a session and its descendants. */
  cancelCallsOf(sessionId: string, reason: string): Promise<void>;
}

/** Bounds on subagents. */
export interface SubagentLimits {
  /** Number of sessions below a root session, one under the other. */
  taskDepth: number;
  /** Tasks of one session tree that run at this replica at once. */
  runningTasks: number;
}

/** A subagent to start. */
export interface SubagentRequest {
  /** The call of `task`. */
  sessionId: string;
  callId: string;
  /** Agent that makes the call. */
  callingAgent: string;
  agent: string;
  /** Session of the subagent. */
  childSession: string;
  /** True if the session is that of an earlier subagent, which goes on. */
  isResumed: boolean;
}

/** The text to do, and where. */
export interface SubagentWork {
  description: string;
  prompt: string;
  cwd: string;
}

/** Starts subagents at the runners of this replica. */
export type Subagents = ReturnType<typeof createSubagents>;

/** Creates the start of subagents. */
export function createSubagents({
  host,
  runners,
  limits,
}: {
  host: SubagentHost;
  runners: RunnerRegistry;
  limits: SubagentLimits;
}) {
  /** Running tasks by root session. */
  const running = new Map<string, number>();

  /** Checks that a subagent can start now; throws `ToolFailure` with what to do. */
  async function check(request: SubagentRequest): Promise<{ parent: Session; runner: AgentRunner }> {
    const { sessionId, agent } = request;
    const parent = await host.findSession(sessionId);
    if (!parent) throw refused("A task needs a session; create one first.");
    checkAgent(parent.session.owner, agent);
    checkDepth(parent.ancestors.length, limits.taskDepth);
    if (request.isResumed) await checkResumed(request);
    const picked = runners.pick(agent, parent.session.owner);
    if ("problem" in picked) throw refused(picked.problem);
    return { parent: parent.session, runner: picked.runner };
  }

  function checkAgent(owner: string, agent: string): void {
    const known = host.agents();
    if (!known.has(agent))
      throw refused(
        `Unknown agent type: ${agent} is not a valid agent type. Use one of: ${[...known.keys()].join(", ")}.`,
      );
    if (host.mayActAs(owner, agent)) return;
    throw refused(
      `Agent ${agent} cannot run as a subagent: the token that owns this session may not act as it. Use another agent.`,
    );
  }

  async function checkResumed({ sessionId, callId, agent, childSession }: SubagentRequest): Promise<void> {
    const found = await host.findSession(childSession);
    if (found?.session.parentSessionId !== sessionId)
      throw refused(
        `Session ${childSession} is not a child of the current session. Use the session id that an earlier task returned, or leave it out.`,
      );
    if (found.session.agent !== agent)
      throw refused(
        `Session ${childSession} belongs to the agent ${found.session.agent}, not to ${agent}. Continue it with agent "${found.session.agent}".`,
      );
    const open = await host.openCalls(sessionId);
    if (open.every((call) => call.callId === callId || call.childSessionId !== childSession)) return;
    throw refused(`Session ${childSession} is at work for another task. Wait until that has ended, then call again.`);
  }

  return {
    check,
    /** Returns the agents that a task of this principal can start now, with their descriptions. */
    startable(principal: string): [name: string, description: string][] {
      const served = new Set(runners.of(principal).flatMap((runner) => runner.agents()));
      return [...host.agents()].filter(([name]) => served.has(name) && host.mayActAs(principal, name));
    },
    /**
     * Runs a subagent and returns its answer. Whatever ends it, no call of its session stays open: leftovers are cancelled. Throws
     * `ToolFailure` if it fails, and the signal's reason if that is aborted.
     */
    async run(
      request: SubagentRequest,
      { description, prompt, cwd }: SubagentWork,
      signal: AbortSignal,
      onUpdate: (update: Extract<RunUpdate, { type: "progress" }> | { type: "started"; runner: AgentRunner }) => void,
    ): Promise<{ text: string; runner: AgentRunner }> {
      const { agent, childSession: id, callId, sessionId, isResumed } = request;
      const { parent, runner } = await check(request);
      const root = parent.rootSessionId;
      const count = running.get(root) ?? 0;
      if (count >= limits.runningTasks) throw refused(tooMany(limits.runningTasks));
      running.set(root, count + 1);
      try {
        const title = `${description} (@${agent} subagent)`;
        await host.openChildSession({ id, parent, agent, title, startedBy: request.callingAgent });
        onUpdate({ type: "started", runner });
        const updates = runner.start({
          id: newId("run", host.now()),
          childSession: id,
          parentCall: { root, sessionId, callId },
          ...{ agent, prompt, cwd, isResumed, principal: parent.owner, signal },
        });
        return { text: await answerOf(updates, id, signal, onUpdate), runner };
      } finally {
        const left = (running.get(root) ?? 1) - 1;
        if (left > 0) running.set(root, left);
        else running.delete(root);
        // While the store is away nothing can be cancelled; then the deadlines of the calls end them.
        await host.cancelCallsOf(id, "The subagent's task has ended.").catch(() => undefined);
      }
    },
  };
}

/** Reads the updates of a run until its end; returns the answer. */
async function answerOf(
  updates: AsyncIterable<RunUpdate>,
  childSession: string,
  signal: AbortSignal,
  onProgress: (update: Extract<RunUpdate, { type: "progress" }>) => void,
): Promise<string> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  aborted.catch(() => undefined);
  const abort = () => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  const iterator = updates[Symbol.asyncIterator]();
  try {
    for (;;) {
      // A runner that does not stop must not keep the calls of the subagent alive.
      const { value: update, done: isOver } = await Promise.race([iterator.next(), aborted]);
      if (isOver) throw new ToolFailure(failureOf(childSession, "its runner ended without a result."));
      if (update.type === "done") return update.text;
      if (update.type === "failed") throw new ToolFailure(failureOf(childSession, update.message));
      onProgress(update);
    }
  } finally {
    signal.removeEventListener("abort", abort);
    iterator.return?.().catch(() => undefined);
  }
}

const failureOf = (childSession: string, why: string) => `Subagent failed (sessionID: ${childSession}): ${why}`;

function checkDepth(depth: number, limit: number): void {
  if (depth < limit) return;
  throw refused(
    `Subagent depth limit reached (${limit}). Do the work in this session; an operator can raise task_depth in [limits].`,
  );
}

const tooMany = (limit: number) =>
  `${limit} tasks of this session tree run already, the limit running_tasks in [limits]. Wait until one has ended, then call again.`;

const refused = (message: string) => new ToolFailure(message, { hadNoEffects: true });
