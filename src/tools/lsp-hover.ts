import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { positionInput, protocolPosition } from "./lsp/position.ts";
import { hoverText } from "./lsp/questions.ts";

/** Shows the type and documentation of what stands at a position. */
export function createLspHover({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_hover",
    version: "1",
    description:
      "Show the type, signature and documentation of the symbol at a position, by the language server of the file.",
    input: positionInput,
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const text = await hoverText(client, file, protocolPosition(input), ctx.signal);
      return { output: text ?? "No hover information available", metadata: { server: client.server.name } };
    },
  });
}
