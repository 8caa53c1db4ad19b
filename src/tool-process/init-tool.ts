import type { MessageInitShape } from "@bufbuild/protobuf";
import type { WorkerInit, WorkerInitedSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { messageOf } from "../body/message-of.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import type { Tool } from "../tool/tool.ts";
import type { LoadedCode } from "./load-code.ts";

/** Returns the description of a tool for an agent, or the problem that makes it unusable for that agent. */
export async function initTool(
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
export async function toolFor(code: LoadedCode, name: string, agent: string): Promise<Tool> {
  const served = code.tools.get(name);
  if (!served) throw new Error(`this process has no tool ${name}`);
  if (!served.forAgent) return served.tool;
  const tool = await served.forAgent(agent);
  if (canonicalJson(tool.definition.inputSchema) === canonicalJson(served.tool.definition.inputSchema)) return tool;
  throw new Error(
    `the tool ${name} has other parameters for the agent ${agent}: let init return the same for all agents`,
  );
}
