import { randomUUID } from "node:crypto";
import { bindTool, hasVersion } from "./define-tool.ts";
import type { Registry, ToolsByName } from "./registry.ts";
import type { Tool } from "./tool.ts";

/**
 * Creates the registration for tools of the embedding program. The definition ID of a tool that declares no version also names
 * the build of that program, and which of several such tools it is. Without a build ID each start has a random one.
 */
export function embeddedTools(
  registry: Registry,
  { buildId, warn }: { buildId: string | undefined; warn(text: string): void },
): Registry["register"] {
  const build = buildId ?? randomUUID();
  const known = new Map<string, WeakMap<Tool, number>>();
  const counts = new Map<string, number>();

  /** Returns the number of a tool among those of the same definition, in the order in which they were first registered. */
  function numberOf(definitionId: string, tool: Tool): number {
    const numbers = known.get(definitionId) ?? new WeakMap<Tool, number>();
    known.set(definitionId, numbers);
    const number = numbers.get(tool) ?? counts.get(definitionId) ?? 0;
    if (!numbers.has(tool)) counts.set(definitionId, number + 1);
    numbers.set(tool, number);
    return number;
  }

  function bind(name: string, tool: Tool): Tool {
    const bound = bindTool(name, tool);
    if (hasVersion(tool)) return bound;
    const number = numberOf(bound.definition.definitionId, tool);
    return bindTool(name, tool, number === 0 ? build : `${build} ${number}`);
  }

  return (tools, workspace) => {
    const unversioned = Object.keys(tools).filter((name) => {
      const tool = tools[name];
      return buildId === undefined && tool !== undefined && !hasVersion(tool);
    });
    const bound: ToolsByName = Object.fromEntries(
      Object.entries(tools).map(([name, tool]) => [name, bind(name, tool)]),
    );
    const remove = registry.register(bound, workspace);
    if (unversioned.length > 0) {
      warn(
        `tools without a version: ${unversioned.join(", ")}; their definition ids differ at each start and on each replica; declare version in defineTool, or start the service with buildId`,
      );
    }
    return remove;
  };
}
