import type { Tool } from "../tool/tool.ts";
import { createBash } from "./bash.ts";
import { createFileChanges } from "./change-file.ts";
import { echo } from "./echo.ts";
import { createEdit } from "./edit.ts";
import { glob } from "./glob.ts";
import { grep } from "./grep.ts";
import { list } from "./list.ts";
import { read } from "./read.ts";
import type { Supervisor } from "./supervisor.ts";
import { webfetch } from "./webfetch.ts";
import { createWrite } from "./write.ts";

/** The tools that every replica has. */
export function builtInTools({ supervisor }: { supervisor: Supervisor }): Tool[] {
  // One for all of them, so that they take turns with each other.
  const changes = createFileChanges();
  return [
    createBash({ supervisor }),
    createEdit({ changes }),
    createWrite({ changes }),
    echo,
    glob,
    grep,
    list,
    read,
    webfetch,
  ];
}
