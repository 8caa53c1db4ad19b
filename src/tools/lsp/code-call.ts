import type { Ask } from "../../core/ask.ts";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Plan, PlanContext, ToolContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { presentStats } from "./documents.ts";
import type { ServerPlace } from "./find-server.ts";
import type { AskedFile, LanguageClient } from "./language-client.ts";
import type { LanguageServers } from "./language-servers.ts";
import { mayRead } from "./places.ts";

/** The plan of a question about a file. */
export interface CodePlan extends Plan {
  readonly path: PathHandle;
  /** True if it asks to start the server. */
  readonly asksToStart: boolean;
}

/** Makes the part of a tool's declaration that all questions about a file share. */
export const questionTool = (servers: LanguageServers) => ({
  permissions: ["lsp", "lsp_server"],
  readOnly: true,
  idempotent: true,
  plan: ({ filePath }: { filePath: string }, ctx: PlanContext) => planQuestion(servers, filePath, ctx),
});

/** Plans a question to the language server of a file. It asks `lsp`, and `lsp_server` where the server has to be started first. */
export async function planQuestion(
  servers: LanguageServers,
  filePath: string,
  { workspace, judge }: Pick<PlanContext, "workspace" | "judge">,
): Promise<CodePlan> {
  const path = await workspace.resolve(filePath);
  const place = path.external ? undefined : servers.placeOf(path.absolute, workspace);
  const starts = place === undefined ? [] : await servers.startAsks(place);
  const command = place === undefined || starts.length === 0 ? undefined : await servers.commandOf(place);
  const program = command?.argv[0];
  return {
    title: path.pattern,
    asks: [...path.asks("lsp"), ...starts],
    // An approval to start a server holds for the program that the approver saw.
    binds: program === undefined ? [] : [{ absolute: program }],
    reveals: [path],
    path,
    asksToStart: starts.length > 0,
    async inspect() {
      const found = checkFile(servers, path, { workspace, judge });
      if (!servers.isRunning(found) && (await servers.commandOf(found)) === undefined)
        throw await servers.missing(found);
      return { preview: () => ({ paths: [path.pattern], command: command?.argv.join(" ") ?? "" }) };
    },
  };
}

/** Returns the server of a file; throws `ToolFailure` if the file cannot be asked about. */
function checkFile(
  servers: LanguageServers,
  path: PathHandle,
  { workspace, judge }: Pick<PlanContext, "workspace" | "judge">,
): ServerPlace {
  const fail = (message: string) => new ToolFailure(message, { hadNoEffects: true });
  if (path.external)
    throw fail(`${path.absolute} lies outside the workspace, and language servers see only the workspace.`);
  if (!mayRead(path, judge))
    throw fail(
      `Rules do not allow to read ${path.pattern} without asking, so language servers do not see it. Use the read tool.`,
    );
  // It is opened when it is sent to the server.
  const stats = presentStats(path.absolute);
  if (stats === undefined) throw fail(`File not found: ${path.absolute}`);
  if (stats.isDirectory()) throw fail(`${path.absolute} is a directory, not a file. Name a file.`);
  const place = servers.placeOf(path.absolute, workspace);
  if (place !== undefined) return place;
  const known = servers.all.map(({ name, languages }) => `${name} (${Object.keys(languages).join(" ")})`);
  throw fail(`No LSP server available for this file type. Configured are: ${visible(known.join(", "))}`);
}

/** Returns the server of a question, started if that needs no approval or has one, and the file for its requests. */
export async function openQuestion(
  servers: LanguageServers,
  { workspace, judge, signal }: Pick<ToolContext, "workspace" | "judge"> & { signal?: AbortSignal },
  { path, asksToStart }: Pick<CodePlan, "path" | "asksToStart">,
): Promise<{ client: LanguageClient; file: AskedFile }> {
  const place = checkFile(servers, path, { workspace, judge });
  const isAllowed = (ask: Ask) => judge(ask).action === "allow";
  if (!asksToStart && !(await servers.startAsks(place)).every(isAllowed))
    throw new ToolFailure(
      `The language server ${place.server.name} does not run, and to start it needs an approval here. Call lsp_hover first, which asks for it, then repeat this call.`,
      { hadNoEffects: true },
    );
  const client = await servers.client(place, signal);
  client.documents.trim();
  return { client, file: { path, resolve: workspace.resolve } };
}
