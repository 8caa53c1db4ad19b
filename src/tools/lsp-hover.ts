import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { Tool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, planQuestion } from "./lsp/code-call.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { hasOneColumn, oneColumn, positionFields, protocolPosition } from "./lsp/position.ts";
import { hoverText } from "./lsp/questions.ts";

/** Shows the type and documentation of what stands at a position. */
export function createLspHover({ servers }: { servers: LanguageServers }): Tool {
  return defineTool({
    name: "lsp_hover",
    version: "1",
    description:
      "Show the type, signature and documentation of the symbol at a position, by the language server of the file.",
    input: z
      .object({ filePath: filePath.describe("File in the workspace"), ...positionFields })
      .refine(hasOneColumn, oneColumn),
    permissions: ["lsp", "lsp_server"],
    readOnly: true,
    idempotent: true,
    plan: ({ filePath }, ctx) => planQuestion(servers, filePath, ctx),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const text = await hoverText(client, file, protocolPosition(input), ctx.signal);
      return { output: text ?? "No hover information available", metadata: { server: client.server.name } };
    },
  });
}
