import { fromConfig, type Rule } from "./rules.ts";

/** An agent that is always there. */
export interface BuiltInAgent {
  description: string;
  /** A list of its own that can only narrow; what `[agent.NAME.permission]` says follows it and may lift it. */
  limits: readonly Rule[];
}

const programs = "basename cat cmp cut df diff dirname du grep head ls pwd readlink realpath stat tail wc which".split(
  " ",
);
const gitCommands = "blame describe diff log ls-files ls-tree rev-parse shortlog show status".split(" ");

/**
 * Commands that only look, whatever their arguments: none writes, runs another program or changes a setting. The one
 * option of git's that writes (`--output`, also abbreviated) is taken back.
 */
const looking: Record<string, "allow" | "deny"> = {
  "*": "deny",
  ...allowed([...programs, ...gitCommands.map((name) => `git ${name}`)].map((command) => `${command} *`)),
  ...allowed(["git branch", "git branch --show-current", "git remote", "git remote -v"]),
  "git * --ou*": "deny",
};

/** `build` has no limits of its own. `plan` changes nothing. `explore` does nothing but look. */
export const builtInAgents: ReadonlyMap<string, BuiltInAgent> = new Map([
  ["build", { description: "Does the work; what the rules say holds.", limits: [] }],
  [
    "plan",
    {
      description: "Looks and thinks, and changes nothing: no edits, and of commands only those that look.",
      limits: fromConfig({ edit: "deny", bash: looking }, ""),
    },
  ],
  [
    "explore",
    {
      description: "Finds things out for another agent: reads, searches and fetches, nothing else.",
      limits: fromConfig(
        {
          "*": "deny",
          ...allowed("read grep glob list lsp webfetch websearch codesearch external_directory doom_loop".split(" ")),
          bash: looking,
        },
        "",
      ),
    },
  ],
]);

function allowed(names: readonly string[]): Record<string, "allow"> {
  return Object.fromEntries(names.map((name) => [name, "allow"] as const));
}
