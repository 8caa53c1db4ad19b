import * as z from "zod";
import { visible } from "../core/visible.ts";
import { defineTool } from "../tool/define-tool.ts";
import type { Tool } from "../tool/tool.ts";
import { type ActionQuestion, codeActions, isCommand, nameOf, type OfferedAction } from "./lsp/code-actions.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import { syncFile } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { listOutput } from "./lsp/places.ts";
import { hasRangeColumns, protocolRange, rangeColumns, rangeFields } from "./lsp/position.ts";

/** Lists the fixes and refactorings that the language server offers for a range. */
export function createLspCodeActions({ servers }: { servers: LanguageServers }): Tool {
  return defineTool({
    name: "lsp_code_actions",
    version: "2",
    description: [
      "List the fixes and refactorings that the language server offers for a range of a file. Changes nothing:",
      "pass the JSON of one of them to lsp_code_action_resolve.",
    ].join(" "),
    input: z.object(rangeFields).refine(hasRangeColumns, rangeColumns),
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      await syncFile(client, file.path, file.resolve);
      const wanted = { range: protocolRange(input), kind: input.kind };
      const offered = await codeActions(client, file, wanted, ctx.signal);
      const lines = offered.map((action) => actionLine(action, wanted));
      return listOutput(lines, { what: "code actions", empty: "No code actions available", leftOut: 0 });
    },
  });
}

function actionLine(action: OfferedAction, wanted: ActionQuestion): string {
  const name = JSON.stringify(nameOf(action, wanted));
  if (isCommand(action)) return `${name} (runs a command: not executed by Toolgate)`;
  const { disabled, isPreferred, edit, command } = action;
  if (disabled) return `${name} (not possible: ${visible(disabled.reason)})`;
  const notes = [
    ...(isPreferred ? ["preferred"] : []),
    ...(command && !edit ? ["may only run a command, which is not executed"] : []),
  ];
  return notes.length === 0 ? name : `${name} (${notes.join(", ")})`;
}
