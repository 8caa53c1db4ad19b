import { fromConfig, type Rule } from "./rules.ts";

/** An agent that exists without configuration. */
export interface BuiltInAgent {
  description: string;
  /** A separate list of rules that can only narrow. The rules of `[agent.NAME.permission]` follow it and may override it. */
  limits: readonly Rule[];
}

const programs = "basename cat cmp cut df diff dirname du grep head ls pwd readlink realpath stat tail wc which".split(
  " ",
);
const gitCommands = "blame describe diff log ls-files ls-tree rev-parse shortlog show status".split(" ");

/**
 * Rules for commands that only read, whatever their arguments: none writes, runs another program or changes a setting. The
 * only git option that writes (`--output`, also abbreviated) is denied again.
 */
const readingCommands: Record<string, "allow" | "deny"> = {
  "*": "deny",
  ...allowed([...programs, ...gitCommands.map((name) => `git ${name}`)].map((command) => `${command} *`)),
  ...allowed(["git branch", "git branch --show-current", "git remote", "git remote -v"]),
  "git * --ou*": "deny",
};

/** The built-in agents: `build` has no limits, `plan` changes nothing, `explore` only reads. */
export const builtInAgents: ReadonlyMap<string, BuiltInAgent> = new Map([
  ["build", { description: "Does the work, within the rules.", limits: [] }],
  [
    "plan",
    {
      description: "Reads and plans, and changes nothing: no edits, and only commands that read.",
      limits: fromConfig({ edit: "deny", bash: readingCommands }, ""),
    },
  ],
  [
    "explore",
    {
      description: "Explores for another agent: only reads, searches and fetches.",
      limits: fromConfig(
        {
          "*": "deny",
          ...allowed("read grep glob list lsp webfetch websearch codesearch external_directory doom_loop".split(" ")),
          bash: readingCommands,
        },
        "",
      ),
    },
  ],
]);

function allowed(names: readonly string[]): Record<string, "allow"> {
  return Object.fromEntries(names.map((name) => [name, "allow"] as const));
}
