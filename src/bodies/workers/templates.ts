import type { JsonObject } from "@bufbuild/protobuf";
import type { WorkerTool } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { Ask } from "../../core/ask.ts";
import { wholeInput } from "../../tool/define-tool.ts";
import { fillAsk, fillTemplate, templateFault } from "../../tool/permission-template.ts";
import { askOfMessage } from "../worker-tool.ts";

/** The asks that a worker's tool declares. */
type Declared = Pick<WorkerTool, "name" | "permissions" | "title" | "inputSchema">;

/** Finds a template of a tool that two inputs could fill to one text; undefined if there is none. */
export function templateProblem({ permissions, title }: Declared): string | undefined {
  const texts = [...permissions.flatMap(({ patterns, always }) => [...patterns, ...always]), title];
  for (const text of texts) {
    const fault = templateFault(text);
    if (fault !== undefined) return `the template ${JSON.stringify(text)} ${fault}`;
  }
  return undefined;
}

/**
 * Makes what a call asks: each template, filled, and always the permission of the tool's own name, so that a rule about it holds
 * whatever the worker declares.
 */
export function templateAsks({ name, permissions, inputSchema = {} }: Declared, input: JsonObject): readonly Ask[] {
  const asks = permissions.map(
    (template) => fillAsk(askOfMessage(template), input, inputSchema) ?? wholeAsk(template.permission, name, input),
  );
  if (permissions.some(({ permission }) => permission === name)) return asks;
  return [...asks, wholeAsk(name, name, input)];
}

/** Makes the title of a call. */
export function titleOf({ name, title }: Pick<Declared, "name" | "title">, input: JsonObject): string {
  return fillTemplate(title, input, { isForPeople: true })?.join(", ") || name;
}

function wholeAsk(permission: string, name: string, input: JsonObject): Ask {
  const patterns = wholeInput(name, input).asks.flatMap((ask) => ask.patterns);
  return { permission, patterns, metadata: { input }, ...(permission === name && { wholeCall: true as const }) };
}
