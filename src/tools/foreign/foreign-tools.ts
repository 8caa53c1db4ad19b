import * as z from "zod";
import { bindForeignTool, defineTool, wholeInput } from "../../tool/define-tool.ts";
import { type ForeignPlace, type ForeignTools, foreignName } from "../../tool/foreign-tools.ts";
import type { Tool } from "../../tool/tool.ts";
import { acpTools } from "./acp.ts";
import { claudeTools } from "./claude.ts";
import { type Mapping, mapping, placeOf } from "./mapping.ts";
import { opencodeTools } from "./opencode.ts";

/** Mappings by name. */
const mapped: ReadonlyMap<string, Mapping> = new Map(
  Object.entries({ acp: acpTools, claude: claudeTools, opencode: opencodeTools }).flatMap(([kind, tools]) =>
    Object.entries(tools).map(([tool, made]) => [foreignName({ kind, tool }), made] as const),
  ),
);

const maxMade = 1_000;

/** Creates the tools of agents that run them themselves. */
export function createForeignTools(): ForeignTools {
  const made = new Map<string, { tool: Tool; plan: Mapping["plan"] }>();

  function find(name: string) {
    const known = made.get(name);
    if (known) return known;
    const found = mapped.get(name) ?? unmapped(name);
    const created = { tool: toolOf(name, found), plan: found.plan };
    if (made.size === maxMade) made.clear();
    made.set(name, created);
    return created;
  }

  return {
    tool(name, place) {
      const { tool, plan } = find(name);
      return place === undefined ? tool : at(tool, plan, place);
    },
    isMapped: (name) => mapped.has(name),
  };
}

/** Returns the tool as it is planned at a place. */
function at(tool: Tool, plan: Mapping["plan"], place: ForeignPlace): Tool {
  return Object.freeze({ ...tool, plan: async (input, ctx) => await plan(input, placeOf(ctx, place)) } satisfies Tool);
}

function toolOf(name: string, { permissions, input, readOnly = false, keep }: Mapping): Tool {
  const tool = defineTool({
    description: `${name}, which the agent runs itself.`,
    version: "1",
    input,
    permissions,
    readOnly,
    ...(keep && { keep }),
    plan() {
      throw new Error(`${name} is planned at the place of a call only`);
    },
    execute() {
      throw new Error(`${name} runs in the agent that asked`);
    },
  });
  return bindForeignTool(name, tool);
}

/** Makes the plan of a tool that has no mapping: it asks with its whole input, for the permission of its name. */
function unmapped(name: string): Mapping {
  const permission = mcpPermission(name) ?? name;
  return mapping({
    permissions: [permission],
    input: z.looseObject({}),
    plan: (input) => ({ ...wholeInput(permission, input), title: name }),
  });
}

/**
 * Returns the permission of a tool of an MCP server, `SERVER_TOOL` for Claude Code's `mcp__SERVER__TOOL`. A name that would be
 * that of a built-in permission has none of these: a server must not choose a permission that rules allow for another purpose.
 */
function mcpPermission(name: string): string | undefined {
  const [, server = "", tool = ""] = /^claude:mcp__(.+?)__(.+)$/.exec(name) ?? [];
  const permission = `${server}_${tool}`;
  if (tool === "" || /^todo|^(external_directory|doom_loop|apply_patch|background_task)$/.test(permission))
    return undefined;
  return permission;
}
