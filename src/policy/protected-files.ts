import { foldCase } from "./wildcard.ts";

/** Describes a file that runs as code without being started explicitly, or that grants access; undefined for other files. `path` is absolute or relative. */
export function protectedFile(permission: string, path: string): string | undefined {
  if (permission !== "edit" && permission !== "read") return undefined;
  const folded = foldPath(path);
  const secret = meets(secrets, folded);
  if (secret !== undefined || permission === "read") return secret;
  if (isEditorWorkspace(folded)) return "a setting of an editor, which may run code";
  return meets(startedImplicitly, folded.replace(agentPlan, "$1plan.md"));
}

/** Checks for a file of VS Code that lists folders, settings and tasks; its name is free. */
const isEditorWorkspace = (folded: string) => folded.endsWith(".code-workspace");

/** A plan that an agent writes for people: a text, which no program reads as a setting. */
const agentPlan = /(^|\/)\.opencode\/plans\/[^/]+\.md$/;

/** Files that expose credentials to their readers. */
const secrets = table([
  ["a directory of keys", ".ssh/ .gnupg/"],
  ["a file of credentials", ".netrc _netrc .git-credentials .pgpass .aws/credentials .docker/config.json .kube/config"],
]);

/** Each path for which `read` always asks contains one of these words. */
export const secretWords = secrets.words;

/** Files that a program runs, or takes commands from, when the user starts it for another purpose. */
const startedImplicitly = table([
  [
    "git's own files, some of which run as code",
    ".git git~1 .git/ git~1/ .gitconfig .gitmodules .config/git/ etc/gitconfig",
  ],
  [
    "a hook that git runs",
    ".husky/ .githooks/ .pre-commit-config.yaml .pre-commit-config.yml lefthook.yml lefthook.yaml .lefthook.yml " +
      ".git-hooks/ .lintstagedrc .overcommit.yml .hg/hgrc .jj/",
  ],
  [
    "a start file of a shell",
    ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout " +
      ".kshrc .cshrc .tcshrc .login .inputrc .tmux.conf .envrc .config/fish/ etc/profile etc/bash.bashrc etc/profile.d/",
  ],
  [
    "a start file of a program",
    ".rprofile .gdbinit .lldbinit .pdbrc sitecustomize.py .pnp.cjs .yarn/releases/ gradlew mvnw flake.nix",
  ],
  [
    "a list of what the system starts",
    ".config/autostart/ .config/systemd/ .config/environment.d/ launchagents/ etc/crontab etc/cron.d/ etc/cron.daily/ " +
      "etc/cron.hourly/ etc/systemd/ etc/init.d/ spool/cron/ etc/ld.so.preload etc/sudoers etc/sudoers.d/",
  ],
  [
    "a build that a CI service runs",
    ".github/workflows/ .github/actions/ .gitea/ .forgejo/ .gitlab-ci.yml .gitlab-ci.yaml .gitlab/ .circleci/ .buildkite/ " +
      ".woodpecker/ .woodpecker.yml .woodpecker.yaml .travis.yml .drone.yml .cirrus.yml .teamcity/ .appveyor.yml appveyor.yml " +
      "jenkinsfile azure-pipelines.yml azure-pipelines.yaml bitbucket-pipelines.yml cloudbuild.yaml cloudbuild.yml",
  ],
  [
    "a setting of a package manager",
    ".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.js bunfig.toml .pypirc pip.conf pip.ini .condarc .gemrc nuget.config " +
      ".cargo/config .cargo/config.toml .cargo/credentials .cargo/credentials.toml .m2/settings.xml .mvn/ .gradle/init.gradle " +
      ".gradle/init.d/ .bundle/config .composer/auth.json .config/pip/",
  ],
  [
    "a setting of an editor, which may run code",
    ".vscode/ .idea/ .zed/ .devcontainer/ .devcontainer.json .vimrc .exrc .gvimrc .nvimrc .nvim.lua .config/nvim/ .vim/ " +
      ".emacs .emacs.d/ .dir-locals.el .mise.toml mise.toml .mise/ " +
      ".mise.local.toml mise.local.toml .helix/ .idx/ .vs/",
  ],
  [
    "a setting of an agent, which may run code",
    ".opencode/ opencode.json opencode.jsonc .claude/ .claude.json .codex/ .gemini/ .cursor/ .windsurf/ .continue/ .aider.conf.yml " +
      ".mcp.json mcp.json .roo/ .clinerules " +
      ".kiro/ .amazonq/ .qwen/ .trae/ .crush.json " +
      ".github/hooks/ .github/copilot/ etc/claude-code/ etc/codex/ etc/gemini-cli/",
  ],
  ["a setting of Toolgate, or a tool, plugin or skill beside it", ".config/toolgate/"],
]);

/** Files and directories that git's settings name, and the directories above them in the workspace; all folded by `foldPath`. */
export interface GitFiles {
  readonly paths: readonly string[];
  readonly parents: readonly string[];
  /** The settings, the directories of hooks, and the files that the settings name, not folded: git runs them or by them. */
  readonly code: readonly string[];
}

/** Describes a path that git's settings name, is below a directory that they name, or contains such a path; for edits only. */
export function gitFile(permission: string, path: string, files: GitFiles | undefined): string | undefined {
  if (files === undefined || permission !== "edit") return undefined;
  const folded = foldPath(path);
  if (files.paths.some((named) => folded === named || folded.startsWith(`${named}/`)))
    return "a file that git's settings name, which may run as code";
  return files.parents.includes(folded) ? "a directory with a file that git's settings name" : undefined;
}

/** Checks a name with case folded: only files and directories with such names, and what is below, can be protected. */
export const isProtectedName = (name: string): boolean => protectedNames.has(name) || isEditorWorkspace(name);

const protectedNames: ReadonlySet<string> = new Set(
  [secrets, startedImplicitly].flatMap(({ files, directories }) =>
    [...files.keys(), ...directories.keys()].map((path) => path.replace(/^.*\//, "")),
  ),
);

/** Checks for the settings of a repository, which ordinary git commands change, such as `git remote add`. */
export const isGitSettings = (path: string) => /(^|\/)\.git\/config$/.test(path);

/**
 * Names of directories whose content a program that has the one above open applies at once. Only that program reads them, so an
 * empty directory of such a name disturbs no other one.
 */
export const liveNames: readonly string[] =
  ".vscode .idea .zed .claude .cursor .windsurf .codex .gemini .continue .roo .opencode".split(" ");

interface Table {
  /** A path without any of these words has no match; most paths have none. */
  words: readonly string[];
  /** Descriptions by the last segment, or the last two, of a path. */
  files: ReadonlyMap<string, string>;
  /** Descriptions by one or two segments in the middle of a path. */
  directories: ReadonlyMap<string, string>;
}

function table(groups: readonly [what: string, names: string][]): Table {
  const all = groups.flatMap(([what, names]) => names.split(" ").map((name) => [name, what] as const));
  return {
    words: all.map(([name]) => name.replace(/\/$/, "")),
    files: new Map(all.filter(([name]) => !name.endsWith("/"))),
    directories: new Map(all.filter(([name]) => name.endsWith("/")).map(([name, what]) => [name.slice(0, -1), what])),
  };
}

function meets({ words, files, directories }: Table, path: string): string | undefined {
  if (!words.some((word) => path.includes(word))) return undefined;
  const segments = path.split("/");
  const at = (i: number) => [segments[i] ?? "", `${segments[i - 1]}/${segments[i]}`];
  for (const name of at(segments.length - 1)) {
    const what = files.get(name) ?? directories.get(name);
    if (what !== undefined) return what;
  }
  for (let i = 0; i < segments.length - 1; i++) {
    for (const name of at(i)) {
      const what = directories.get(name);
      if (what !== undefined) return what;
    }
  }
  return undefined;
}

/** Folds a path like file systems that ignore case, composition, or invisible characters. */
export function foldPath(path: string): string {
  return foldCase(
    /^[ -~]*$/.test(path) ? path : path.normalize("NFKC").replace(/\p{Default_Ignorable_Code_Point}/gu, ""),
  );
}

/** The files that connectors of agents wrote. Tools read and edit them only after an ask. */
export interface ConnectorFiles {
  /** Describes a path if it is such a file, or for an edit a directory that contains one. */
  describe(permission: string, path: string): string | undefined;
  /** Checks if a directory contains such a file. */
  isBelow(directory: string): boolean;
}

/** Creates the check over the present files. `files` returns the same array until they change. */
export function createConnectorFiles(files: () => readonly string[]): ConnectorFiles {
  let of: readonly string[] = [];
  let folded: readonly string[] = [];
  function current(): readonly string[] {
    const found = files();
    if (found !== of) {
      of = found;
      folded = found.map(foldCase);
    }
    return folded;
  }
  const isBelow = (directory: string) => {
    const start = `${foldCase(directory).replace(/\/$/, "")}/`;
    return current().some((file) => file.startsWith(start));
  };
  return {
    describe(permission, path) {
      if (current().length === 0 || (permission !== "edit" && permission !== "read")) return undefined;
      if (current().includes(foldCase(path))) return "a file of a connector, through which an agent asks";
      return permission === "edit" && isBelow(path) ? "a directory with files of a connector" : undefined;
    },
    isBelow: (directory) => current().length > 0 && isBelow(directory),
  };
}
