import { randomBytes } from "node:crypto";
import { basename, extname } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  WorkerAffinity,
  type WorkerHelloSchema,
  type WorkerToolSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { boundTool, declarationOf } from "../../tool/define-tool.ts";
import type { DefinedTool, Tool } from "../../tool/tool.ts";
import { askOf } from "./bodies.ts";
import { declaredTool } from "./tool-declaration.ts";

/** Facts about a worker process that each of its connections declares. */
export interface WorkerFacts {
  /** Names the fleet: all processes that bring the same tools. Default: the name of the program's file. */
  worker?: string;
  /** Names the code, such as a commit; it is recorded with each call. */
  buildId?: string;
  /** Orders builds: new calls get the definitions of the highest one. Default: 0. */
  generation?: number;
  /** Maximum number of bodies that run at a time. Default: 16. */
  capacity?: number;
  /** Names of the workspaces that it serves. Default: all that its token allows. */
  workspaces?: readonly string[];
  /** Time that the service waits for this process after its connection is lost, in ms. Default: 60,000. */
  resumeMs?: number;
}

/** The parts of `hello` that do not change. Throws if a tool cannot run in a worker. */
export function workerHello(
  tools: readonly DefinedTool[],
  facts: WorkerFacts,
): MessageInitShape<typeof WorkerHelloSchema> {
  const {
    worker = fleetName(),
    buildId = "",
    generation = 0,
    capacity = 16,
    workspaces = [],
    resumeMs = 60_000,
  } = facts;
  if (tools.length === 0) throw new Error("a worker without tools has nothing to do: name at least one");
  const { bun, node } = process.versions;
  return {
    protocol: 1,
    instanceId: `wrk_${randomBytes(16).toString("base64url")}`,
    ...{ worker, buildId, capacity, resumeMs, generation: BigInt(generation), workspaces: [...workspaces] },
    sdk: `toolgate/worker on ${bun === undefined ? `Node.js ${node}` : `Bun ${bun}`}`,
    tools: tools.map(boundTool).map(workerToolOf),
  };
}

/** Command with which an operator creates a token that fits the tools. */
export function tokenStep({ tools = [] }: MessageInitShape<typeof WorkerHelloSchema>): string {
  const flags = tools.map(({ name }) => `--tool ${name}`).join(" ");
  return `set TOOLGATE_TOKEN to what \`toolgate token create --role worker ${flags}\` prints`;
}

function fleetName(): string {
  const program = process.argv[1] ?? "";
  const name = basename(program, extname(program)).replaceAll(/[^A-Za-z0-9_.-]/g, "-");
  return /^[A-Za-z]/.test(name) ? name.slice(0, 64) : "worker";
}

function workerToolOf(tool: Tool): MessageInitShape<typeof WorkerToolSchema> {
  const { name } = tool;
  if (name === "") throw new Error("a tool of a worker needs a name: pass name to defineTool");
  if (tool.describe || tool.offer || tool.durable)
    throw new Error(`the tool ${name} cannot run in a worker: describe, offer and durable need the service`);
  const { hasPlan, templates, worker = {} } = declarationOf(tool);
  // What its calls may ask is for the token to say.
  const { asks: _, ...declared } = declaredTool(tool);
  const { title = "", queueMs, maxConcurrent = 0, prefersSession = false, metadataKeys = [] } = worker;
  return {
    ...declared,
    plans: hasPlan,
    permissions: templates.map((template) => askOf({ ...template, permission: template.permission ?? name })),
    ...{ title, maxConcurrent, metadataKeys: [...metadataKeys] },
    ...(queueMs !== undefined && { queueMs }),
    affinity: prefersSession ? WorkerAffinity.PREFER_SESSION : WorkerAffinity.UNSPECIFIED,
  };
}
