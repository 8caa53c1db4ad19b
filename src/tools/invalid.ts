import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { similar } from "../tool/similar.ts";
import type { DefinedTool } from "../tool/tool.ts";

/** Answers a call that a host could not parse, so that the model learns what was wrong with it. */
export function createInvalid({ namesIn }: { namesIn(workspace: string): readonly string[] }): DefinedTool {
  return defineTool({
    name: "invalid",
    version: "1",
    description:
      "Do not call this. Agent hosts call it when a call names an unknown tool or its arguments are not valid JSON.",
    input: z.object({
      tool: z.string().describe("The tool as the model called it"),
      error: z.string().describe("What is wrong with the call"),
    }),
    permissions: [],
    readOnly: true,
    idempotent: true,
    plan: () => ({ title: "Invalid tool call", asks: [] }),
    execute({ tool, error }, { workspace }) {
      const names = namesIn(workspace.name);
      const [meant] = names.includes(tool) ? [] : similar(tool, names, 1);
      const hint = meant === undefined ? "" : `\nThere is no tool "${tool}"; the nearest is "${meant}".`;
      return { output: `The arguments provided to the tool are invalid: ${error}${hint}` };
    },
  });
}
