import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import type { Preview } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { WorkerCallSchema, WorkerPlanned, WorkerTool } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { WorkerRights } from "../../core/principal.ts";
import { visible } from "../../core/visible.ts";
import { bindTool, defineTool } from "../../tool/define-tool.ts";
import { ExecutorLost, NotEntered, ToolFailure } from "../../tool/errors.ts";
import type { RemoteBodies, RemoteCall, RemoteRun } from "../../tool/remote.ts";
import type { Plan, PlanContext, Tool, ToolContext } from "../../tool/tool.ts";
import { boundDetail, type DetailedPlan, keepOfWorker, noDetail } from "../worker-tool.ts";
import { askProblem, type IsClosed, mayAsk, textOfDeclaration } from "./declared-tool.ts";
import { runRemoteBody } from "./remote-body.ts";
import { templateAsks, titleOf } from "./templates.ts";
import type { RemoteBody, WorkerProcess } from "./worker-process.ts";

/** The declaration of a tool, and the worker that made it. */
export interface DeclaredTool {
  readonly declared: WorkerTool;
  /** Name of the fleet. */
  readonly worker: string;
  readonly rights: WorkerRights;
}

/** Finds the processes that run the bodies of a tool. */
export interface RemoteHost extends RemoteBodies {
  readonly isClosed: IsClosed;
  /** Bodies by the call that they run for; see `keyOfCall`. */
  readonly bodies: Map<string, RemoteBody>;
  /** True once workers were asked to leave this replica: they read nothing more from it. */
  isLeaving(): boolean;
  /** Returns the process that runs, or is to run, a body; undefined if it is not known here. */
  processOf(run: RemoteRun): WorkerProcess | undefined;
  /** Called when a process has not entered a body, and will not enter it. */
  refused(process: WorkerProcess, call: RemoteCall, reason: string): void;
  /** Lets a worker plan a call; undefined if none that is connected here does. */
  plan(call: MessageInitShape<typeof WorkerCallSchema>): Promise<WorkerPlanned | undefined>;
}

/** Makes the tool that a worker declares. Throws if a schema of it is not valid. */
export function remoteTool({ declared, worker, rights }: DeclaredTool, host: RemoteHost): Tool {
  const {
    name,
    description,
    inputSchema = {},
    outputSchema,
    annotations,
    permissions,
    providers,
    timeoutMs,
    keep,
  } = declared;
  const text = textOfDeclaration(declared);
  const defined = defineTool<JsonObject, DetailedPlan>({
    ...{ name, description, fleet: worker, input: inputSchema, remote: host },
    ...(outputSchema && { outputSchema }),
    // What an approver allowed for always holds for what the worker declared then.
    ...{ version: text, permissionVersion: text },
    // That a tool only reads would make decisions looser.
    destructive: annotations?.destructive ?? false,
    openWorld: annotations?.openWorld ?? false,
    idempotent: rights.idempotent && (annotations?.idempotent ?? false),
    permissions: [...new Set([name, ...permissions.map(({ permission }) => permission)])],
    ...(providers.length > 0 && { providers }),
    ...(timeoutMs > 0 && { timeoutMs }),
    ...(keep && { keep: keepOfWorker(keep) }),
    async plan(input: JsonObject, ctx): Promise<DetailedPlan> {
      const asked = { title: titleOf(declared, input), asks: templateAsks(declared, input) };
      if (!declared.plans) return { ...asked, detail: noDetail };
      const planned = await host.plan(callOf(declared, tool.definition.definitionId, input, ctx));
      if (planned === undefined) return { ...asked, detail: noDetail, waitsForWorker: true };
      return planOf({ declared, worker, rights }, asked, planned, host.isClosed);
    },
    async execute(input, { plan, ...ctx }) {
      const { remote } = ctx;
      if (remote === undefined) throw new Error("the call of a worker's tool has no run of a worker");
      const process = host.processOf(remote);
      if (remote.isAdopted && process === undefined) throw new ExecutorLost(`Its worker ${worker} is away.`);
      if (process === undefined) throw new NotEntered("its worker is away");
      if (host.isLeaving() && !remote.isAdopted) throw new NotEntered("this replica is going away");
      const call = { ...callOf(declared, tool.definition.definitionId, input, ctx), ...runFields(declared, ctx) };
      const { title, detail, timeoutMs = 0 } = plan;
      return await runRemoteBody(
        process,
        { tool: name, definitionId: tool.definition.definitionId, call, title, detail, timeoutMs },
        { ...ctx, remote },
        host,
      );
    },
  });
  const tool = bindTool(name, defined);
  return tool;
}

function callOf(
  { name }: WorkerTool,
  definitionId: string,
  input: JsonObject,
  { sessionId, callId, agent, workspace }: Pick<PlanContext, "sessionId" | "callId" | "agent" | "workspace">,
): MessageInitShape<typeof WorkerCallSchema> {
  return { sessionId, callId, agent, input, tool: name, definitionId, workspace: workspace.name };
}

function runFields({ metadataKeys }: WorkerTool, { messageId, model, extra, rootSessionId }: ToolContext) {
  const metadata = Object.fromEntries(Object.entries(extra).filter(([key]) => metadataKeys.includes(key)));
  return { messageId, ...model, metadata, rootSessionId };
}

/** Adds what a worker plans to what its tool declares: it can only ask more. */
function planOf(
  { declared: { name }, worker, rights }: DeclaredTool,
  { title, asks }: Pick<Plan, "title" | "asks">,
  planned: WorkerPlanned,
  isClosed: IsClosed,
): DetailedPlan {
  const refuse = (why: string) => new ToolFailure(why, { hadNoEffects: true });
  if (planned.problem !== "") throw refuse(visible(planned.problem));
  if (planned.binds.length > 0)
    throw refuse(`The worker ${worker} binds its plan to files, which only tool processes can.`);
  const wrong = planned.asks.find(({ permission }) => !mayAsk(permission, name, rights, isClosed));
  if (wrong !== undefined) throw refuse(`Nothing was asked: ${askProblem(wrong.permission, name, isClosed)}.`);
  const { preview } = planned;
  return {
    title: planned.title === "" ? title : `${planned.title} (as ${worker} says)`,
    asks: [
      ...asks,
      ...planned.asks.map(({ permission, patterns, always, metadata }) => ({
        ...{ permission, patterns, metadata: { ...metadata, asSaidBy: worker } },
        ...(always.length > 0 && { always }),
      })),
    ],
    ...(preview && { inspect: async () => ({ preview: () => asSaidBy(worker, preview) }) }),
    ...boundDetail(planned),
  };
}

/** Marks a preview as the word of a worker: the service has not checked it. */
function asSaidBy(worker: string, preview: Preview): Preview {
  return { ...preview, text: `As ${worker} says:\n${preview.text}`.trimEnd() };
}
