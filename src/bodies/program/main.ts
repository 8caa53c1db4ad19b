/** The program of a tool process: loads tool files and plugins, and runs their bodies and hooks for the service. */
import { createReadStream, createWriteStream, writeSync } from "node:fs";
import { Socket } from "node:net";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { sizeDelimitedDecodeStream, sizeDelimitedEncode } from "@bufbuild/protobuf/wire";
import {
  type WorkerHelloSchema,
  type WorkerHook,
  type WorkerHookedSchema,
  type WorkerInit,
  type WorkerInitedSchema,
  type WorkerToolSchema,
  WorkRequestSchema,
  type WorkResponse,
  WorkResponseSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { canonicalJson, plainJson } from "../../core/json.ts";
import { within } from "../../core/within.ts";
import { declarationOf } from "../../tool/define-tool.ts";
import type { Tool } from "../../tool/tool.ts";
import { openWorkspace, type Workspace } from "../../tool/workspace.ts";
import { type Bodies, createBodies } from "../sdk/bodies.ts";
import { messageOf } from "../sdk/message-of.ts";
import { createPlans, type Plans } from "../sdk/plans.ts";
import type { Send } from "../sdk/running-body.ts";
import { declaredTool } from "../sdk/tool-declaration.ts";
import { type LoadedCode, loadCode, type ServedTool } from "./load-code.ts";

/** Reports a defect on stderr, which the service logs, and ends the process: its state is not known any more. */
function crash(kind: string, error: unknown): never {
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  writeSync(2, `${kind}: ${text}\n`);
  process.exit(1);
}

/** State of a process after its code was loaded. */
interface Serving {
  readonly send: Send;
  readonly code: LoadedCode;
  readonly plans: Plans;
  readonly bodies: Bodies;
}

/** Loads the code that the service names, then handles its messages until its pipe ends. */
async function serveCalls({ messages, send }: ServicePipes): Promise<void> {
  let serving: Serving | undefined;
  for await (const { message } of messages) {
    if (message.case === "load") {
      const code = await loadCode(message.value);
      const plans = createPlans({
        toolFor: (name, agent) => toolFor(code, name, agent),
        workspaceOf,
      });
      serving = { send, code, plans, bodies: createBodies(plans, send) };
      await send({ case: "hello", value: helloOf(code) });
    } else if (serving) handle(serving, message);
    else throw new Error(`the service sent ${message.case} before load`);
  }
}

/** Opens the workspace of a call. The service asks for directories outside: the sandbox hides what they are. */
async function workspaceOf({
  workspace: name,
  directory,
}: {
  workspace: string;
  directory: string;
}): Promise<Workspace> {
  const workspace = await openWorkspace(name, directory);
  return {
    ...workspace,
    async resolve(path) {
      const handle = await workspace.resolve(path);
      const asks: typeof handle.asks = (permission, metadata) =>
        handle.asks(permission, metadata).filter((ask) => ask.permission === permission);
      return { ...handle, asks };
    },
  };
}

/** Handles a message without waiting for its outcome, so that none delays another. */
function handle({ send, code, plans, bodies }: Serving, message: WorkResponse["message"]): void {
  switch (message.case) {
    case "plan":
      void plans.plan(message.value).then((value) => send({ case: "planned", value }));
      return;
    case "init":
      void initTool(code, message.value).then((value) => send({ case: "inited", value }));
      return;
    case "hook":
      void runPluginHook(code, message.value).then((value) => send({ case: "hooked", value }));
      return;
    case "start":
      void bodies.start(message.value);
      return;
    case "cancel":
      bodies.cancel(message.value);
      return;
    case "answer":
      bodies.answer(message.value);
      return;
    case "ended":
      bodies.end(message.value.assignment);
      return;
    default:
      throw new Error(`the service sent ${message.case ?? "a message"}, which this version does not know`);
  }
}

/** Time that a hook may take. */
const hookMs = 5_000;

/** Runs a hook and returns the output that it changed; the service checks that it is usable. */
async function runPluginHook(
  { plugins }: LoadedCode,
  { hookId, plugin, name, input, output }: WorkerHook,
): Promise<MessageInitShape<typeof WorkerHookedSchema>> {
  try {
    const hook = plugins[plugin]?.hooks[name];
    if (!hook) throw new Error(`plugin ${plugin} of this process has no hook ${name}`);
    const changed: JsonObject = output ?? {};
    await within(hookMs, Promise.resolve(hook(input ?? {}, changed)));
    return { hookId, outcome: { case: "output", value: plainJson(changed) } };
  } catch (error) {
    return { hookId, outcome: { case: "problem", value: messageOf(error) } };
  }
}

/** Version of the messages that this program speaks. */
const protocol = 1;

/** Declares what the process brings. */
function helloOf(code: LoadedCode): MessageInitShape<typeof WorkerHelloSchema> {
  const { bun, node } = process.versions;
  return {
    protocol,
    sdk: bun === undefined ? `Node.js ${node}` : `Bun ${bun}`,
    tools: [...code.tools.values()].map(fileTool),
    plugins: code.plugins.map(({ name, hooks }) => ({ name, hooks: Object.keys(hooks) })),
    files: [...code.files],
    problems: [...code.problems],
  };
}

/** Declares a tool of a file. */
function fileTool({ tool, isForeign, source, file, forAgent }: ServedTool): MessageInitShape<typeof WorkerToolSchema> {
  return {
    ...declaredTool(tool),
    // The plan of a foreign tool is the default one; an approval covers its body.
    plans: declarationOf(tool).hasPlan && !isForeign,
    coversBody: isForeign,
    inits: forAgent !== undefined,
    ...{ source, file },
  };
}

/** Returns the description of a tool for an agent, or the problem that makes it unusable for that agent. */
async function initTool(
  code: LoadedCode,
  { initId, tool: name, agent }: WorkerInit,
): Promise<MessageInitShape<typeof WorkerInitedSchema>> {
  try {
    const { definition } = await toolFor(code, name, agent);
    return { initId, description: definition.description };
  } catch (error) {
    return { initId, problem: messageOf(error) };
  }
}

/** Returns a tool as it is for an agent. Throws if the process has none, or if its schema differs from the declared one. */
async function toolFor(code: LoadedCode, name: string, agent: string): Promise<Tool> {
  const served = code.tools.get(name);
  if (!served) throw new Error(`this process has no tool ${name}`);
  if (!served.forAgent) return served.tool;
  const tool = await served.forAgent(agent);
  if (canonicalJson(tool.definition.inputSchema) === canonicalJson(served.tool.definition.inputSchema)) return tool;
  throw new Error(
    `the tool ${name} has other parameters for the agent ${agent}: let init return the same for all agents`,
  );
}

/** The connection to the service. */
interface ServicePipes {
  /** Messages of the service; ends with its pipe. */
  readonly messages: AsyncIterable<WorkResponse>;
  readonly send: Send;
}

const maxMessageBytes = 16 * 1_048_576;

/** Opens file descriptors 3 and 4. The process exits when the service closes one of them. */
function openPipes(): ServicePipes {
  // Sockets do not block a thread of the pool while nothing comes; Bun has none for an open descriptor.
  const isBun = process.versions.bun !== undefined;
  const input = isBun ? createReadStream("", { fd: 3 }) : new Socket({ fd: 3, readable: true, writable: false });
  const output = isBun ? createWriteStream("", { fd: 4 }) : new Socket({ fd: 4, readable: false, writable: true });
  const end = () => process.exit();
  input.on("error", end);
  output.on("error", end);
  return {
    messages: sizeDelimitedDecodeStream(WorkResponseSchema, input, { readMaxBytes: maxMessageBytes }),
    send(message) {
      const { promise, resolve } = Promise.withResolvers<void>();
      output.write(
        sizeDelimitedEncode(WorkRequestSchema, create(WorkRequestSchema, { ...(message && { message }) })),
        () => resolve(),
      );
      return promise;
    },
  };
}

// Last, since what runs here uses the constants above.
process.on("uncaughtException", (error) => crash("Uncaught exception", error));
process.on("unhandledRejection", (error) => crash("Unhandled rejection", error));
await serveCalls(openPipes());
process.exit();
