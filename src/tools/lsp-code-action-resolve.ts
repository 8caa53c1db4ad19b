import type { CodeAction } from "vscode-languageserver-protocol";
import * as z from "zod";
import { visible } from "../core/visible.ts";
import { defineTool } from "../tool/define-tool.ts";
import type { Tool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import type { FileChanges } from "./fs/change-file.ts";
import { codeActionKinds, codeActions, findAction, isCommand, type OfferedActionName } from "./lsp/code-actions.ts";
import { planQuestion } from "./lsp/code-call.ts";
import { type ComputedEdit, commandNote, executeEdit, noAction, planEdit } from "./lsp/edit-call.ts";
import { type AskedFile, followUp, type LanguageClient, syncFile } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { rangeOf, writtenRange } from "./lsp/position.ts";

const actionName = z.object({
  title: z.string().min(1),
  kind: z.string().optional(),
  range: z.string().regex(writtenRange, { error: "a range such as 3:5-3:9, as lsp_code_actions lists it" }),
  only: z.enum(codeActionKinds).optional().describe("The kind that was asked for"),
});

/** Applies a code action. The server computes the change; it is asked, shown and written like that of any other tool. */
export function createLspCodeActionResolve({
  servers,
  changes,
}: {
  servers: LanguageServers;
  changes: FileChanges;
}): Tool {
  return defineTool({
    name: "lsp_code_action_resolve",
    version: "2",
    description: [
      "Apply one of the actions that lsp_code_actions listed. All files change together or none does.",
      "Commands of the language server are not executed.",
    ].join(" "),
    input: z.object({
      filePath: filePath.describe("File in the workspace"),
      codeAction: z
        .preprocess(parsed, actionName)
        .describe("The JSON of the action as lsp_code_actions lists it: title, kind and range"),
    }),
    permissions: ["edit", "lsp"],
    destructive: true,
    async plan(input, ctx) {
      const { codeAction, filePath } = input;
      const question = await planQuestion(servers, filePath, ctx);
      return await planEdit(servers, { ...question, title: codeAction.title }, ctx, (client, file) =>
        computeAction(client, file, codeAction),
      );
    },
    execute: (_input, ctx) => executeEdit(changes, ctx),
  });
}

/** Parses an action that is sent as text. */
function parsed(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** Asks for the action again, so that its edit is one of the present content. */
async function computeAction(client: LanguageClient, file: AskedFile, name: OfferedActionName): Promise<ComputedEdit> {
  await syncFile(client, file.path, file.resolve);
  const offered = await codeActions(client, file, { range: rangeOf(name.range), kind: name.only });
  const action = findAction(offered, name);
  if (action === undefined)
    throw noAction(`There is no code action "${visible(name.title)}" for this range now. Call lsp_code_actions again.`);
  if (isCommand(action))
    throw noAction(`"${visible(action.title)}" only runs a command of the language server, which is not executed.`);
  if (action.disabled) throw noAction(`"${visible(action.title)}" is not possible: ${visible(action.disabled.reason)}`);
  const { edit, command } = await resolved(client, action);
  if (edit === undefined && command !== undefined)
    throw noAction(
      `"${visible(action.title)}" only runs the command ${visible(command.command)} of the language server, which is not executed.`,
    );
  return { edit, notes: command === undefined ? [] : [commandNote(command.title)] };
}

async function resolved(client: LanguageClient, action: CodeAction): Promise<CodeAction> {
  const { codeActionProvider } = client.capabilities;
  const resolves = typeof codeActionProvider === "object" && codeActionProvider.resolveProvider === true;
  if (action.edit !== undefined || !resolves) return action;
  return await followUp<CodeAction>(client, "codeAction/resolve", action);
}
