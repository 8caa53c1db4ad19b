import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { Tool } from "../tool/tool.ts";
import { wantedPrograms } from "./lsp/find-server.ts";
import type { LanguageServers, ServerState } from "./lsp/language-servers.ts";

/** Lists the language servers with their state. */
export function createLspServers({ servers }: { servers: LanguageServers }): Tool {
  return defineTool({
    name: "lsp_servers",
    version: "1",
    description:
      "List the language servers: the files that each one knows, whether it is installed, and whether it runs here.",
    input: z.object({}),
    permissions: ["lsp"],
    readOnly: true,
    idempotent: true,
    async plan(_input, { workspace }) {
      const path = await workspace.resolve(".");
      return { title: "language servers", asks: path.asks("lsp"), path };
    },
    async execute(_input, { plan: { path }, workspace }) {
      const states = servers.states().filter(({ place }) => place.workspace === path.absolute);
      const lines = await Promise.all(
        servers.all.map(async (server) => {
          const place = servers.placeIn(server, workspace);
          const command = await servers.commandOf(place);
          const installed =
            command === undefined
              ? `not installed (there is no ${wantedPrograms(server.commands)}); install it: ${server.install}`
              : `installed: ${command.argv.join(" ")}`;
          const own = states.filter((state) => state.place.server.name === server.name);
          const head = `${server.name} (${Object.keys(server.languages).join(" ")}) - ${installed}`;
          return [head, ...own.map((state) => `  ${stateText(state)}`)].join("\n");
        }),
      );
      return { output: lines.join("\n"), metadata: { count: lines.length, running: states.length } };
    },
  });
}

function stateText({ place: { root }, state, problem, startedMs, client }: ServerState): string {
  const refused = client?.reports.refusedEdits ?? 0;
  return [
    `${state} for ${root}`,
    ...(client ? [`started in ${Math.round(startedMs)} ms`] : []),
    ...(refused > 0 ? [`${refused} edits that it wanted to make by itself were refused`] : []),
    ...(problem === "" ? [] : [`last problem: ${problem}`]),
  ].join(", ");
}
