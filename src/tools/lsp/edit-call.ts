import { createHash } from "node:crypto";
import type { WorkspaceEdit } from "vscode-languageserver-protocol";
import { canonicalJson } from "../../core/canonical-json.ts";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Plan, PlanContext, ToolContext, ToolResult } from "../../tool/tool.ts";
import { carryOut } from "../apply-patch/carry-out.ts";
import {
  asksForSteps,
  contentHash,
  pathsOfTarget,
  previewOfSteps,
  resultOfSteps,
  writesOf,
} from "../apply-patch/report-steps.ts";
import { checkVersions, type PatchStep, versionsOf } from "../apply-patch/verify-patch.ts";
import type { FileChanges } from "../fs/change-file.ts";
import { type CodePlan, openQuestion } from "./code-call.ts";
import { type AskedFile, type LanguageClient, notReady } from "./language-client.ts";
import type { LanguageServers } from "./language-servers.ts";
import { stepsOf, syncFilesOf } from "./workspace-edit.ts";

/** The plan of a change that a language server computes. */
export interface EditPlan extends Plan {
  readonly steps: readonly PatchStep[];
  readonly client: LanguageClient | undefined;
  /** Parts of the change that are left out. */
  readonly notes: readonly string[];
}

/** A change as a server returned it, with what is not done of it. */
export interface ComputedEdit {
  readonly edit: WorkspaceEdit | null | undefined;
  readonly notes?: readonly string[];
}

/**
 * Plans a change that the server of a file computes: asks the server until it knows the present content of all files that it
 * changes, and asks `edit` for all of them. An approval is bound to the old and the new content.
 */
export async function planEdit(
  servers: LanguageServers,
  question: CodePlan,
  ctx: Pick<PlanContext, "workspace" | "judge">,
  compute: (client: LanguageClient, file: AskedFile) => Promise<ComputedEdit>,
): Promise<EditPlan> {
  const { title, path } = question;
  // The engine denies the call by its asks, so the server is not asked.
  if (ctx.judge({ permission: "lsp", patterns: [path.pattern], paths: [path.absolute] }).action === "deny")
    return { ...{ title, asks: question.asks, steps: [], notes: [] }, client: undefined };
  const { client, file } = await openQuestion(servers, ctx, { path, asksToStart: false });
  const { steps, notes } = await computeSteps(client, file, ctx, compute);
  const targets = steps.map(({ target }) => target);
  const paths = targets.flatMap(pathsOfTarget);
  return {
    title: steps.length === 0 ? title : `${title}: ${paths.length} ${paths.length === 1 ? "file" : "files"}`,
    // The server runs now, so starting it is no part of what is approved.
    asks: [...path.asks("lsp"), ...(steps.length === 0 ? [] : asksForSteps(targets))],
    binds: paths,
    reveals: paths,
    contentDigest: digestOf(steps),
    ...{ steps, client, notes },
    inspect: async () => ({ preview: () => previewOfSteps(steps) }),
  };
}

async function computeSteps(
  client: LanguageClient,
  file: AskedFile,
  ctx: Pick<PlanContext, "workspace" | "judge">,
  compute: (client: LanguageClient, file: AskedFile) => Promise<ComputedEdit>,
): Promise<{ steps: PatchStep[]; notes: readonly string[] }> {
  for (let round = 0; round < maxRounds; round += 1) {
    const { edit, notes = [] } = await compute(client, file);
    if (edit === null || edit === undefined) return { steps: [], notes };
    // Once a file is open at the server, the server knows what is on disk, whatever it had read before.
    if (await syncFilesOf(client, edit, ctx)) return { steps: await stepsOf(client, edit, ctx), notes };
  }
  throw notReady(client);
}

const maxRounds = 4;

/** Carries out a planned change, all or nothing. Throws `ChangedAfterApproval` if a file has changed since it was planned. */
export async function executeEdit(
  changes: FileChanges,
  { steps, client, notes }: EditPlan,
  { beforeWrite, reads, signal }: Pick<ToolContext, "beforeWrite" | "reads" | "signal">,
): Promise<ToolResult> {
  if (steps.length === 0) return { output: ["No changes", ...notes].join("\n") };
  const targets = steps.map(({ target }) => target);
  const paths = targets.flatMap(pathsOfTarget).map(({ absolute }) => absolute);
  return await changes.inTurns(paths, async () => {
    signal.throwIfAborted();
    await checkVersions(targets, versionsOf(steps));
    const wasRead = await Promise.all(
      steps.map(
        async ({ before, target: { path } }) =>
          before !== undefined && (await reads.get(path.absolute)) === before.sha256,
      ),
    );
    await beforeWrite(steps.flatMap(writesOf));
    await carryOut(steps, changes);
    for (const [index, { place, content }] of steps.entries()) {
      // A file that the model has never seen stays unread.
      if (content !== undefined && wasRead[index]) await reads.record(place.absolute, contentHash(content));
    }
    const { output, metadata } = resultOfSteps(steps);
    return { output: [output, ...notes].join("\n"), metadata: { ...metadata, server: client?.server.name ?? "" } };
  });
}

function digestOf(steps: readonly PatchStep[]): string {
  const contents = steps.map(({ target: { path }, place, content, before }) => [
    ...[path.absolute, place.absolute, before?.sha256 ?? null],
    content === undefined ? null : contentHash(content),
  ]);
  return createHash("sha256").update(canonicalJson(contents)).digest("hex");
}

/** Makes the note about a command of a server, which is not run. */
export const commandNote = (title: string) =>
  `(The command "${visible(title)}" of the language server was not executed: Toolgate runs only what is asked for.)`;

/** Makes the failure of an action that is not possible. */
export const noAction = (why: string) => new ToolFailure(why, { hadNoEffects: true });
