import type { PrepareRenameResult } from "vscode-languageserver-protocol";
import { visible } from "../core/visible.ts";
import { defineTool } from "../tool/define-tool.ts";
import type { Tool } from "../tool/tool.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import { askAbout } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { rangeText } from "./lsp/places.ts";
import { positionInput, protocolPosition } from "./lsp/position.ts";

/** Reports whether the symbol at a position can be renamed. */
export function createLspPrepareRename({ servers }: { servers: LanguageServers }): Tool {
  return defineTool({
    name: "lsp_prepare_rename",
    version: "1",
    description: "Check whether the symbol at a position can be renamed. Changes nothing.",
    input: positionInput,
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const { renameProvider } = client.capabilities;
      if (renameProvider === true)
        return {
          output: `The language server ${client.server.name} renames symbols, and does not check positions before.`,
        };
      const params = { position: protocolPosition(input) };
      const method = "textDocument/prepareRename";
      const found = await askAbout<PrepareRenameResult | null>(client, method, file, params, ctx.signal);
      return { output: renameText(found) };
    },
  });
}

function renameText(found: PrepareRenameResult | null): string {
  if (found === null || (!("range" in found) && !("start" in found))) {
    const isDefault = found !== null && "defaultBehavior" in found && found.defaultBehavior;
    return isDefault ? "The symbol at this position can be renamed" : "Cannot rename at this position";
  }
  const range = "range" in found ? found.range : found;
  const name = "placeholder" in found ? ` "${visible(found.placeholder)}"` : "";
  return `The symbol${name} at ${rangeText(range)} can be renamed`;
}
