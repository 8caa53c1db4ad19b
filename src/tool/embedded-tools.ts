import { randomUUID } from "node:crypto";
import { bindTool, hasVersion, isTool } from "./define-tool.ts";
import { exportedTool } from "./foreign.ts";
import type { Registry, ToolsByName } from "./registry.ts";
import type { DefinedTool } from "./tool.ts";

/** Adds tools of the embedding program, for one workspace root or for all, and returns the function that removes them. */
export interface RegisterTools {
  (tools: ToolsByName, workspace?: string): () => void;
  /** Tools in a form of opencode (`Tool.define`, `tool()`, `{ id, init }`) are made first. */
  (tools: Readonly<Record<string, object>>, workspace?: string): Promise<() => void>;
}

/**
 * Creates the registration for tools of the embedding program. The definition ID of a tool also names which of several registrations
 * it is that would have the same one, and, if it declares no version, the build of that program. Without a build ID each start has a
 * random one. A registration that was removed and made again is another one: the code around it may have changed.
 */
export function embeddedTools(
  registry: Registry,
  { buildId, warn }: { buildId: string | undefined; warn(text: string): void },
): RegisterTools {
  const build = buildId ?? randomUUID();
  const numbers = numberTools();

  function add(tools: ToolsByName, workspace: string | undefined): () => void {
    const unversioned = Object.keys(tools).filter((name) => {
      const tool = tools[name];
      return buildId === undefined && tool !== undefined && !hasVersion(tool);
    });
    const named = Object.entries(tools).map(([name, tool]) => ({ name, tool, bound: bindTool(name, tool) }));
    const bound = named.map(({ name, tool, bound }) => {
      const number = numbers.take(bound.definition.definitionId, tool);
      const source = [...(hasVersion(tool) ? [] : [build]), ...(number === 0 ? [] : [number])].join(" ");
      return [name, source === "" ? bound : bindTool(name, tool, source)] as const;
    });
    const remove = registry.register(Object.fromEntries(bound), workspace);
    if (unversioned.length > 0) {
      warn(
        `tools without a version: ${unversioned.join(", ")}; their definition ids differ at each start and on each replica; declare version in defineTool, or start the service with buildId`,
      );
    }
    let isRemoved = false;
    return () => {
      remove();
      if (isRemoved) return;
      isRemoved = true;
      for (const { tool, bound } of named) numbers.release(bound.definition.definitionId, tool);
    };
  }

  function register(tools: ToolsByName, workspace?: string): () => void;
  function register(tools: Readonly<Record<string, object>>, workspace?: string): Promise<() => void>;
  function register(tools: Readonly<Record<string, object>>, workspace?: string) {
    return areTools(tools) ? add(tools, workspace) : makeTools(tools).then((made) => add(made, workspace));
  }
  return register;
}

function areTools(tools: Readonly<Record<string, object>>): tools is ToolsByName {
  return Object.values(tools).every(isTool);
}

async function makeTools(tools: Readonly<Record<string, object>>): Promise<ToolsByName> {
  const made = Object.entries(tools).map(async ([name, value]) => {
    const found = await exportedTool(name, value);
    if (found === undefined) throw new TypeError(`"${name}" is not a tool: it has neither init nor execute`);
    return [name, found.tool] as const;
  });
  return Object.fromEntries(await Promise.all(made));
}

/** Numbers registrations of one definition in their order; a tool keeps its number until its last registration is removed. */
function numberTools() {
  const counts = new Map<string, number>();
  const registered = new Map<string, Map<DefinedTool, { number: number; uses: number }>>();
  return {
    take(definitionId: string, tool: DefinedTool): number {
      const tools = registered.get(definitionId) ?? new Map<DefinedTool, { number: number; uses: number }>();
      registered.set(definitionId, tools);
      const known = tools.get(tool) ?? { number: counts.get(definitionId) ?? 0, uses: 0 };
      if (known.uses === 0) counts.set(definitionId, known.number + 1);
      known.uses += 1;
      tools.set(tool, known);
      return known.number;
    },
    release(definitionId: string, tool: DefinedTool): void {
      const tools = registered.get(definitionId);
      const known = tools?.get(tool);
      if (known === undefined) return;
      known.uses -= 1;
      if (known.uses === 0) tools?.delete(tool);
    },
  };
}
