import type { CodeAction } from "vscode-languageserver-protocol";
import * as z from "zod";
import { visible } from "../core/visible.ts";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import type { FileChanges } from "./fs/change-file.ts";
import {
  type ActionQuestion,
  codeActions,
  findAction,
  isCommand,
  nameOf,
  type OfferedAction,
  type OfferedActionName,
} from "./lsp/code-actions.ts";
import { openQuestion, planQuestion } from "./lsp/code-call.ts";
import { type ComputedEdit, commandNote, executeEdit, noAction, planEdit } from "./lsp/edit-call.ts";
import { type AskedFile, followUp, type LanguageClient, syncFile } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { listOutput } from "./lsp/places.ts";
import { hasRangeColumns, protocolRange, rangeColumns, rangeFields } from "./lsp/position.ts";

const actionName = z.object({ title: z.string().min(1), kind: z.string().optional() });

/**
 * Lists the fixes and refactorings that the language server offers for a range, or applies one of them. The server computes the
 * change; it is asked, shown and written like that of any other tool.
 */
export function createLspCodeActions({
  servers,
  changes,
}: {
  servers: LanguageServers;
  changes: FileChanges;
}): DefinedTool {
  return defineTool({
    name: "lsp_code_actions",
    version: "3",
    description: [
      "List the fixes and refactorings that the language server offers for a range of a file.",
      "To apply one, call again with the same range and kind, and its JSON as apply: all files change together or none does.",
      "Commands of the language server are not executed.",
    ].join(" "),
    input: z
      .object({
        ...rangeFields,
        apply: z
          .preprocess(parsed, actionName)
          .optional()
          .describe("The JSON of the action to apply, as the list has it; without it nothing changes"),
      })
      .refine(hasRangeColumns, rangeColumns),
    permissions: ["lsp", "lsp_server", "edit"],
    destructive: true,
    async plan(input, ctx) {
      const { apply } = input;
      const question = await planQuestion(servers, input.filePath, ctx);
      if (apply === undefined) return question;
      const wanted = { range: protocolRange(input), kind: input.kind };
      return await planEdit(servers, { ...question, title: apply.title }, ctx, (client, file) =>
        computeAction(client, file, wanted, apply),
      );
    },
    async execute(input, ctx) {
      const { plan } = ctx;
      if ("steps" in plan) return await executeEdit(changes, plan, ctx);
      const { client, file } = await openQuestion(servers, ctx, plan);
      await syncFile(client, file.path, file.resolve);
      const wanted = { range: protocolRange(input), kind: input.kind };
      const offered = await codeActions(client, file, wanted, ctx.signal);
      return listOutput(offered.map(actionLine), {
        what: "code actions",
        empty: "No code actions available",
        leftOut: 0,
      });
    },
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

function actionLine(action: OfferedAction): string {
  const name = JSON.stringify(nameOf(action));
  if (isCommand(action)) return `${name} (runs a command: not executed by Toolgate)`;
  const { disabled, isPreferred, edit, command } = action;
  if (disabled) return `${name} (not possible: ${visible(disabled.reason)})`;
  const notes = [
    ...(isPreferred ? ["preferred"] : []),
    ...(command && !edit ? ["may only run a command, which is not executed"] : []),
  ];
  return notes.length === 0 ? name : `${name} (${notes.join(", ")})`;
}

/** Asks for the action again, so that its edit is one of the present content. */
async function computeAction(
  client: LanguageClient,
  file: AskedFile,
  wanted: ActionQuestion,
  name: OfferedActionName,
): Promise<ComputedEdit> {
  await syncFile(client, file.path, file.resolve);
  const action = findAction(await codeActions(client, file, wanted), name);
  if (action === undefined)
    throw noAction(
      `There is no code action "${visible(name.title)}" for this range now. Call lsp_code_actions again without apply.`,
    );
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
