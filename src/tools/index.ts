import type { BackgroundCalls } from "../agents/background-calls.ts";
import type { Subagents } from "../agents/subagents.ts";
import type { SearchSettings } from "../core/search-providers.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { Skills } from "../tool/skills/skills.ts";
import type { Tool } from "../tool/tool.ts";
import { createApplyPatch } from "./apply-patch.ts";
import { createBackgroundCancel } from "./background-cancel.ts";
import { createBackgroundOutput } from "./background-output.ts";
import { createBackgroundTask } from "./background-task.ts";
import { createBash } from "./bash.ts";
import { createBatch } from "./batch.ts";
import { createCodeSearch } from "./codesearch.ts";
import { echo } from "./echo.ts";
import { createEditTool } from "./edit.ts";
import { createFileChanges } from "./fs/change-file.ts";
import { glob } from "./glob.ts";
import { grep } from "./grep.ts";
import { listTool } from "./list.ts";
import { createMultiEdit } from "./multiedit.ts";
import type { Pipes } from "./process/pipe.ts";
import type { Supervisor } from "./process/supervisor.ts";
import { question } from "./question.ts";
import { readTool } from "./read.ts";
import { createSkill } from "./skill.ts";
import { createTask } from "./task.ts";
import { todoread } from "./todoread.ts";
import { todowrite } from "./todowrite.ts";
import { webfetch } from "./webfetch.ts";
import { createWebSearch } from "./websearch.ts";
import { createWrite } from "./write.ts";

/** Creates the built-in tools, which every replica has. */
export function builtInTools(parts: {
  supervisor: Supervisor;
  sandbox: Sandbox;
  pipes: Pipes;
  skills: Skills;
  agentNames(): readonly string[];
}): Tool[] {
  // Shared, so that changes of one file by different tools take turns.
  const changes = createFileChanges();
  return [
    createApplyPatch({ changes }),
    createBatch({ changes }),
    createBash(parts),
    createEditTool({ changes }),
    createWrite({ changes }),
    echo,
    glob,
    grep,
    listTool,
    createMultiEdit({ changes }),
    question,
    readTool,
    createSkill(parts),
    todoread,
    todowrite,
    webfetch,
  ];
}

/** Creates the tools that start and manage subagents. They need the sessions and calls of the service that serves them. */
export function subagentTools(parts: { background: BackgroundCalls; subagents: Subagents }): Tool[] {
  return [createBackgroundCancel(parts), createBackgroundOutput(parts), createBackgroundTask(parts), createTask(parts)];
}

/** Creates the built-in tools that are offered only where the configuration names a provider, which may change at any time. */
export function searchTools(live: SearchSettings): Record<keyof SearchSettings, Tool> {
  return { websearch: createWebSearch(live), codesearch: createCodeSearch(live) };
}
