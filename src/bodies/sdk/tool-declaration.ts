import { declarationOf } from "../../tool/define-tool.ts";
import type { Tool } from "../../tool/tool.ts";

/** Declares a tool to the service, as far as every process does. */
export function declaredTool(tool: Tool) {
  const { definition, permissions } = tool;
  const { version = "", permissionVersion = "", timeoutMs = 0 } = declarationOf(tool);
  return {
    name: tool.name,
    description: definition.description,
    ...(definition.inputSchema && { inputSchema: definition.inputSchema }),
    ...(definition.outputSchema && { outputSchema: definition.outputSchema }),
    ...(definition.annotations && { annotations: definition.annotations }),
    ...{ version, permissionVersion, timeoutMs },
    providers: [...(tool.providers ?? [])],
    ...(permissions && { asks: { names: [...permissions] } }),
    experimental: tool.experimental,
    changeForm: tool.changeForm ?? "",
    keep: tool.keep,
  };
}
