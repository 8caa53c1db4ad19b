import type { BackgroundCalls } from "../agents/runners/runner.ts";
import type { Subagents } from "../agents/runners/subagents.ts";
import type { Skills } from "../bodies/skills/skills.ts";
import type { SearchSettings } from "../core/search-providers.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { createApplyPatch } from "./apply-patch.ts";
import { createBackgroundCancel, createBackgroundOutput, createBackgroundTask } from "./background.ts";
import { createBash } from "./bash.ts";
import { createBatch } from "./batch.ts";
import { createCodeSearch } from "./codesearch.ts";
import { echo } from "./echo.ts";
import { createEditTool } from "./edit.ts";
import { createFileChanges } from "./fs/change-file.ts";
import { glob } from "./glob.ts";
import { grep } from "./grep.ts";
import { listTool } from "./list.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { createNewErrors, noNewErrors } from "./lsp/new-errors.ts";
import { createLsp } from "./lsp.ts";
import { createLspCodeActions } from "./lsp-code-actions.ts";
import {
  createLspDiagnostics,
  createLspDocumentSymbols,
  createLspFindReferences,
  createLspGotoDefinition,
  createLspHover,
  createLspWorkspaceSymbols,
} from "./lsp-queries.ts";
import { createLspRename } from "./lsp-rename.ts";
import { createMultiEdit } from "./multiedit.ts";
import type { Spares } from "./process/confine-command.ts";
import type { Pipes } from "./process/run-command.ts";
import type { Quarantine } from "./process/settle-created.ts";
import type { Supervisor } from "./process/supervisor.ts";
import { question } from "./question.ts";
import { readTool } from "./read.ts";
import { createSkill } from "./skill.ts";
import { createTask } from "./task.ts";
import { todoread, todowrite } from "./todo.ts";
import { createWebFetch } from "./webfetch.ts";
import { createWebSearch } from "./websearch.ts";
import { createWrite } from "./write.ts";

/** Creates the built-in tools, which every replica has. */
export function builtInTools(parts: {
  supervisor: Supervisor;
  sandbox: Sandbox;
  pipes: Pipes;
  quarantine: Quarantine | undefined;
  spares?: Spares | undefined;
  skills: Skills;
  agentNames(): readonly string[];
  servers: LanguageServers;
  /** True if `edit` and `write` report new errors. */
  reportsDiagnostics: boolean;
}): DefinedTool[] {
  // Shared, so that changes of one file by different tools take turns.
  const changes = createFileChanges({ running: parts.sandbox.running, changed: parts.servers.changed });
  const errors = parts.reportsDiagnostics ? createNewErrors(parts.servers) : noNewErrors;
  return [
    createApplyPatch({ changes }),
    createBatch({ changes }),
    createBash(parts),
    createEditTool({ changes, errors }),
    createWrite({ changes, errors }),
    echo,
    glob,
    grep,
    listTool,
    createLsp(parts),
    createLspCodeActions({ ...parts, changes }),
    createLspDiagnostics(parts),
    createLspDocumentSymbols(parts),
    createLspFindReferences(parts),
    createLspGotoDefinition(parts),
    createLspHover(parts),
    createLspRename({ ...parts, changes }),
    createLspWorkspaceSymbols(parts),
    createMultiEdit({ changes }),
    question,
    readTool,
    createSkill(parts),
    todoread,
    todowrite,
    createWebFetch(),
  ];
}

/** Creates the tools that start and manage subagents. They need the sessions and calls of the service that serves them. */
export function subagentTools(parts: { background: BackgroundCalls; subagents: Subagents }): DefinedTool[] {
  return [createBackgroundCancel(parts), createBackgroundOutput(parts), createBackgroundTask(parts), createTask(parts)];
}

/** Creates the built-in tools that are offered only where the configuration names a provider, which may change at any time. */
export function searchTools(live: SearchSettings): Record<keyof SearchSettings, DefinedTool> {
  return { websearch: createWebSearch(live), codesearch: createCodeSearch(live) };
}
