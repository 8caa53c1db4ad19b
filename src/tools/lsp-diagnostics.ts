import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { diagnosticLine, fileDiagnostics, severities } from "./lsp/new-errors.ts";
import { createLineReader, listOutput, placeAt } from "./lsp/places.ts";

/** Lists errors and warnings of a file as it is now. */
export function createLspDiagnostics({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_diagnostics",
    version: "1",
    description: "List the errors and warnings of a file as it is on disk now, without a build, at most 200.",
    input: z.object({
      filePath: filePath.describe("File in the workspace"),
      severity: z
        .enum([...severities, "all"])
        .default("all")
        .describe("The only severity to list"),
    }),
    ...questionTool(servers),
    async execute({ severity }, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const all = await fileDiagnostics(client, file, ctx.signal);
      const found = all.filter((one) => severity === "all" || severities[(one.severity ?? 1) - 1] === severity);
      const sorted = found.toSorted((one, other) => one.range.start.line - other.range.start.line);
      const lines = await createLineReader()(file.path);
      const places = sorted.map(({ range }) => placeAt(file.path, range.start, lines));
      const links = { directory: ctx.workspace.directory, places };
      return listOutput(sorted.map(diagnosticLine), {
        ...{ what: "diagnostics", empty: "No diagnostics found", leftOut: 0, links },
      });
    },
  });
}
