import { randomBytes } from "node:crypto";
import * as z from "zod";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Durability, DurableState, StartedCall } from "../../core/durability.ts";
import { untilAborted } from "../../core/within.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { AgentRunner, RunUpdate, SessionCall } from "./runner.ts";
import type { RunnerRegistry } from "./runner-registry.ts";

/** Sessions and calls of the service, as far as subagents need them. */
export interface SubagentHost {
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
  /** Resolves when a call has ended. */
  ended(call: SessionCall): Promise<void>;
}

/** Bounds on subagents. */
export interface SubagentLimits {
  /** Number of sessions below a root session, one under the other. */
  taskDepth: number;
  /** Tasks of one session tree that run at this replica at once. */
  runningTasks: number;
  /** Time within which the runner of a task whose replica is lost must connect again, in ms. */
  resumeMs: number;
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

  /** Checks that a subagent can start now, and reserves a run for it; throws `ToolFailure` with what to do. */
  async function admit(
    request: SubagentRequest,
  ): Promise<{ parent: Session; runner: AgentRunner; release: () => void }> {
    const { sessionId, agent } = request;
    const parent = await host.findSession(sessionId);
    if (!parent) throw refused("A task needs a session; create one first.");
    checkAgent(parent.session.owner, agent);
    checkDepth(parent.ancestors.length, limits.taskDepth);
    if (request.isResumed) await checkResumed(request);
    const picked = runners.pick(agent, parent.session.owner);
    if ("problem" in picked) throw refused(picked.problem);
    return { parent: parent.session, runner: picked.runner, release: runners.reserve(picked.runner) };
  }

  function checkAgent(owner: string, agent: string): void {
    const known = host.agents();
    if (!known.has(agent))
      throw refused(
        `Unknown agent type: ${agent} is not a valid agent type. Use one of: ${[...known.keys()].join(", ")}. The operator adds one to toolgate.toml by the line [agent.${agent}].`,
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

  /**
   * A task at a connected runner is resumed by the replica to which the runner connects with the run; one at a configured program
   * ends with its replica, as the program does.
   */
  const durability: Durability = {
    survives: (call) => runOf(call) !== undefined,
    canResume: (call) => runners.holderOf(runOf(call) ?? "") !== undefined,
    waitMs: limits.resumeMs,
  };

  return {
    /** Checks that a subagent can start now; throws `ToolFailure` with what to do. */
    async check(request: SubagentRequest): Promise<{ parent: Session; runner: AgentRunner }> {
      const { release, ...admitted } = await admit(request);
      release();
      return admitted;
    },
    /** Returns the agents that a task of this principal can start now, with their descriptions. */
    startable(principal: string): [name: string, description: string][] {
      const served = new Set(runners.of(principal).flatMap((runner) => runner.agents()));
      return [...host.agents()].filter(([name]) => served.has(name) && host.mayActAs(principal, name));
    },
    durability,
    /**
     * Runs a subagent, or goes on with the run of a call that is resumed, and returns its answer. Whatever ends it, no call of its
     * session stays open: leftovers are cancelled, unless another run of the call goes on. Throws `ToolFailure` if it fails, and the
     * signal's reason if that is aborted.
     */
    async run(
      request: SubagentRequest,
      work: SubagentWork,
      { durable, signal }: { durable: DurableState; signal: AbortSignal },
      onUpdate: (update: Extract<RunUpdate, { type: "progress" }> | { type: "started"; runner: AgentRunner }) => void,
    ): Promise<{ text: string; runner: AgentRunner }> {
      const { childSession, callId, sessionId } = request;
      const former = durable.isResumed ? runOf(durable) : undefined;
      using reservation = new DisposableStack();
      const { parent, runner, release } =
        former === undefined ? await admit(request) : await findHolder(host, runners, request, former);
      reservation.defer(release);
      // A task that is resumed was admitted before.
      const leave = countTask(
        running,
        parent.rootSessionId,
        former === undefined ? limits.runningTasks : Number.MAX_VALUE,
      );
      const id = former ?? newRunId(sessionId);
      const stop = new AbortController();
      try {
        if (former === undefined) await prepare(host, request, work, { parent, runner, durable, id });
        signal.throwIfAborted();
        onUpdate({ type: "started", runner });
        const { agent, isResumed } = request;
        const parentCall = { root: parent.rootSessionId, sessionId, callId };
        const run = { id, childSession, parentCall, agent, isResumed, prompt: work.prompt, cwd: work.cwd };
        const updates = runner.start({ ...run, principal: parent.owner, signal: stop.signal });
        const answer = answerOf(updates, childSession, signal, onUpdate);
        // From here on the runner counts the run itself.
        reservation.dispose();
        return { text: await answer, runner };
      } finally {
        leave();
        const { surviving } = runner;
        const settle = () => surviving?.settled(id);
        if (surviving) host.ended(request).then(settle, () => undefined);
        if (!surviving || !(await durable.isLeft())) {
          if (signal.aborted) stop.abort(signal.reason);
          // While the store is away nothing can be cancelled; then the deadlines of the calls end them.
          await host.cancelCallsOf(childSession, "The subagent's task has ended.").catch(() => undefined);
        }
      }
    },
  };
}

/** Finds the runner that holds the run of a call that is resumed. */
async function findHolder(
  host: SubagentHost,
  runners: RunnerRegistry,
  { sessionId, childSession }: SubagentRequest,
  run: string,
): Promise<{ parent: Session; runner: AgentRunner; release: () => void }> {
  const [parent, runner] = [await host.findSession(sessionId), runners.holderOf(run)];
  if (!parent || !runner) throw new ToolFailure(failureOf(childSession, "its agent runner disconnected again."));
  return { parent: parent.session, runner, release: () => {} };
}

/** Creates the session of the subagent. What survives this replica is stored before the runner gets the run. */
async function prepare(
  host: SubagentHost,
  { agent, callingAgent: startedBy, childSession: id }: SubagentRequest,
  { description }: SubagentWork,
  { parent, runner, durable, id: run }: { parent: Session; runner: AgentRunner; durable: DurableState; id: string },
): Promise<void> {
  await host.openChildSession({ id, parent, agent, title: `${description} (@${agent} subagent)`, startedBy });
  if (runner.surviving) await durable.store({ run });
}

/** Counts a task of a session tree, which may have `max`; returns the function that ends it. */
function countTask(running: Map<string, number>, root: string, max: number): () => void {
  const count = running.get(root) ?? 0;
  if (count >= max) throw refused(tooMany(max));
  running.set(root, count + 1);
  return () => {
    const left = (running.get(root) ?? 1) - 1;
    if (left > 0) running.set(root, left);
    else running.delete(root);
  };
}

/** Reads the updates of a run until its end; returns the answer. */
async function answerOf(
  updates: AsyncIterable<RunUpdate>,
  childSession: string,
  signal: AbortSignal,
  onProgress: (update: Extract<RunUpdate, { type: "progress" }>) => void,
): Promise<string> {
  const iterator = updates[Symbol.asyncIterator]();
  try {
    for (;;) {
      // A runner that does not stop must not keep the calls of the subagent alive.
      const { value: update, done: isOver } = await untilAborted(iterator.next(), signal);
      if (isOver) throw new ToolFailure(failureOf(childSession, "its runner ended without a result."));
      if (update.type === "done") return update.text;
      if (update.type === "failed") throw new ToolFailure(failureOf(childSession, update.message));
      onProgress(update);
    }
  } finally {
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

/** Memo that a call of `task` stores before a runner gets its run. */
const runMemo = z.object({ run: z.string() });

/** Creates the id of a run. It names the session of its call, so that every replica finds the call. Session ids have no dot. */
const newRunId = (sessionId: string): string => `run_${randomBytes(8).toString("hex")}.${sessionId}`;

/** Returns the session that the id of a run names; empty if it names none. */
export const sessionOfRun = (run: string): string => /^run_[0-9a-f]{16}\.(.+)$/.exec(run)?.[1] ?? "";

/** Returns the run that a call of `task` waits for; undefined if its run ends with its replica. */
export function runOf({ memo }: Pick<StartedCall, "memo">): string | undefined {
  return runMemo.safeParse(memo).data?.run;
}
