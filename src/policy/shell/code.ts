import { programOf } from "./behaviour.ts";
import { type Danger, type Effects, noEffects, pathIn } from "./effects.ts";
import { patchesOf } from "./git.ts";
import { interpret, interpreter, isInput } from "./interpreters.ts";
import type { CommandLine, SimpleCommand, Word } from "./line.ts";
import { each } from "./options.ts";
import { programs } from "./programs.ts";
import { setsOnlyHarmless, spellCommand } from "./spelling.ts";
import { isRunner, isWrapper } from "./wrappers.ts";

/** The part that a file has in a command that runs it, or reads it as code. */
export type CodeUse = "script" | "build" | "patch" | "startup" | "program";

/** A file that a command runs or reads as code: an approval of the command is bound to its content. */
export interface CodeFile {
  path: string;
  glob: boolean;
  use: CodeUse;
  /** For a package.json the scripts in it that run, for a Makefile or justfile the targets; no target is the first one. */
  scripts?: readonly string[];
  /** True if a shell reads it, whatever its name is. */
  isShell?: boolean;
}

/** A file that a line runs or reads as code, with its links resolved. */
export interface PlacedCode extends Pick<CodeFile, "use" | "scripts" | "isShell"> {
  absolute: string;
  /** The path relative to the workspace. */
  pattern: string;
  external: boolean;
}

/** The files that a command runs or reads as code. */
export interface CommandCode {
  files: readonly CodeFile[];
  /** True if it may run more code of the workspace than these files. */
  runsMore: boolean;
}

/** Finds the code of a command, without that of the commands that it runs; `runsMore` of those is `innerRunsMore`. */
export function commandCode(
  command: SimpleCommand,
  { scripts, dangers }: Pick<Effects, "scripts" | "dangers">,
  innerRunsMore: boolean,
): CommandCode {
  const { assignments, words, redirects } = command;
  const name = programOf(words);
  const plain = words.map(({ value }) => value);
  const [own, ...shares] = [interpreter(name), ...startups(assignments, plain)];
  const isShell = (own !== undefined && !codeOptions.has(own)) || name === "." || name === "source";
  const file = (path: string, use: CodeUse): CodeFile => ({
    ...{ path, glob: globOf(words, path), use },
    ...(isShell && { isShell }),
  });
  const files = scripts.map((path) => file(path, useOf(words, path)));
  const add = (use: CodeUse, paths: readonly string[]) => {
    for (const path of paths) if (path !== "" && path !== "-") files.push(file(path, use));
  };
  add("startup", shares);
  const runsMore =
    innerRunsMore ||
    own !== undefined ||
    runsWorkspace(name, plain) ||
    !setsOnlyHarmless(command) ||
    dangers.some((danger) => mayRunFiles(name, plain, danger));
  if (own !== undefined) {
    add("startup", valuesOf(plain, isShell ? "--rcfile --init-file" : (codeOptions.get(own) ?? "")));
    if (own === "python") add("script", modulesOf(plain).flatMap(filesOfModule));
    const bare = scripts.filter((path) => !/\.\w+$/.test(path));
    add(
      "script",
      bare.flatMap((path) => (endings.get(own) ?? []).map((ending) => path + ending)),
    );
  }
  if (/^([gmn]?awk|g?sed|jq)$/.test(name)) add("script", valuesOf(plain, "-f --file --from-file"));
  if (name === "curl") add("startup", valuesOf(plain, "-K --config"));
  if (name === "wget") add("startup", valuesOf(plain, "--config --use-askpass"));
  if (name === "patch") add("patch", [...valuesOf(plain, "-i --input"), ...plain.slice(2)]);
  if (name === "git") add("patch", patchesOf(words));
  const inputs = redirects.filter(({ operator }) => operator === "<").map(({ target }) => target);
  if (runsMore || files.some(({ use }) => use === "patch") || name === "patch" || name === "ssh")
    add(name === "patch" || name === "git" ? "patch" : "script", inputs);
  files.push(...buildInputs(name, plain));
  return { files, runsMore };
}

/** Options of interpreters that name code to load before the program. */
const codeOptions: ReadonlyMap<string, string> = new Map(
  Object.entries({
    node: "-r --require --import --loader --experimental-loader",
    tsx: "-r --require --import",
    "ts-node": "-r --require",
    ruby: "-r",
    perl: "-M",
    lua: "-l",
    php: "-c",
    python: "",
    julia: "-L --load",
    osascript: "",
    pwsh: "-File",
    Rscript: "",
    tclsh: "",
  }),
);

/** The endings that interpreters try for a name without a suffix. */
const endings: ReadonlyMap<string, readonly string[]> = new Map(
  Object.entries({
    ...each("node tsx ts-node", [".js", ".cjs", ".mjs", ".json", ".ts", "/package.json", "/index.js"]),
    python: ["/__main__.py"],
  }),
);

const isOperand = (word: string) => !word.startsWith("-");

/** Checks if an effect that the analysis does not know to be harmless may run files of the workspace. */
function mayRunFiles(name: string, words: readonly string[], { at, mayBegin }: Danger): boolean {
  if (mayBegin || name === "curl" || name === "wget") return false;
  if (name === "git") return at > 1 || !tameGit.test(words[at] ?? "");
  if (/^(docker|podman)$/.test(name)) return !tameDocker.test(words[at] ?? "");
  return name !== "tar" || words.some((word) => tarPrograms.test(word));
}

/** Sub-commands that run no files of the workspace, apart from those that settings of git name. */
const tameGit = /^(am|apply|bundle|config|gc|help|init|maintenance|notes|var)$/;
const tameDocker =
  /^(attach|commit|export|kill|load|login|logout|network|pause|pull|push|rename|restart|rm|rmi|save|search|start|stop|system|tag|unpause|volume|wait)$/;
const tarPrograms = /^(-\w*[FI]|--(use-c|to-c|checkpoint-a|rsh|rmt|info-s|new-v))/;

/** Letters that take no value where a letter behind them may, as in `make -sf FILE`. */
const flagLetters = "BbdhkLnpqRrSsvw";

/** Returns the values of options, as separate words, behind `=`, or for a letter in the same word. */
function valuesOf(words: readonly string[], options: string): string[] {
  const names = options.split(" ").filter((name) => name !== "");
  return words.slice(1).flatMap((word, i) =>
    names.flatMap((name) => {
      if (word === name) return words[i + 2] ?? [];
      if (word.startsWith(`${name}=`)) return word.slice(name.length + 1);
      if (!/^-\w$/.test(name)) return [];
      const rest = new RegExp(`^-[${flagLetters}]*${name[1]}(.*)$`, "s").exec(word)?.[1];
      return rest === undefined ? [] : rest || (words[i + 2] ?? []);
    }),
  );
}

/** Returns the module that Python runs; other letters may stand before the `m`. */
function modulesOf(words: readonly string[]): string[] {
  return words.flatMap((word, i) => {
    const [, attached] = /^-[a-zA-Z]*?m(.*)$/.exec(word) ?? [];
    return attached === undefined ? [] : attached || (words[i + 1] ?? []);
  });
}

/** The files in the working directory that `python -m` finds for a module. */
function filesOfModule(name: string): string[] {
  const path = name.replaceAll(".", "/");
  return [`${path}.py`, `${path}/__init__.py`, `${path}/__main__.py`];
}

/** Returns the files that variables name as code to run first. */
function startups(assignments: SimpleCommand["assignments"], words: readonly string[]): string[] {
  const given = words.slice(1).flatMap((word) => {
    const [, name = "", value = ""] = /^(\w+)=(.*)$/s.exec(word) ?? [];
    return name === "" ? [] : [{ name, value }];
  });
  return [...assignments, ...given].flatMap(({ name, value }) => {
    if (/^(BASH_ENV|ENV|PYTHONSTARTUP|PERL5DB|LD_PRELOAD)$/.test(name)) return value;
    return /^(NODE_OPTIONS|RUBYOPT|PERL5OPT)$/.test(name)
      ? valuesOf(["", ...value.split(/\s+/)], "-r --require --import --loader --experimental-loader -M")
      : [];
  });
}

function globOf(words: readonly Word[], path: string): boolean {
  return words.some(({ value, glob }) => glob && value === path);
}

const useOf = (words: readonly Word[], path: string): CodeUse => (words[0]?.value === path ? "program" : "script");

/** Checks if a program runs what the workspace holds: build programs, test runners, and any that is not known. */
function runsWorkspace(name: string, words: readonly string[]): boolean {
  // The machine that it names may be this one.
  if (isRunner(words) || name === "ssh" || buildFiles.has(name) || packageManagers.test(name)) return true;
  return !(programs.has(name) || knownTame.test(name));
}

/** Programs apart from those of the table of which it is known what they read. */
const knownTame =
  /^(find|git|tar|g?sed|[gmn]?awk|cc|clang(\+\+)?|g(\+\+|cc)|dd|docker|podman|split|csplit|cd|:|true|false|test|\[|trap|su|patch|bash|env|command|builtin|exec|export|set|unset|read|printf|time|timeout|nice|nohup|xargs|sudo|doas|stdbuf|setsid|ionice|watch|flock)$/;

const packageManagers = /^(npm|pnpm|yarn|bun)$/;

/** Existing files that build programs read by themselves in their directory. */
const buildFiles: ReadonlyMap<string, readonly string[]> = new Map(
  Object.entries({
    make: ["GNUmakefile", "makefile", "Makefile"],
    gmake: ["GNUmakefile", "makefile", "Makefile"],
    just: ["justfile", "Justfile", ".justfile"],
    task: ["Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml", "Taskfile.dist.yml"],
    tox: ["tox.ini", "setup.cfg", "pyproject.toml"],
    nox: ["noxfile.py"],
    pytest: ["conftest.py", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"],
    cargo: ["Cargo.toml", "build.rs", ".cargo/config.toml"],
    go: ["go.mod", "go.work"],
    gradle: ["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.properties"],
    gradlew: ["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.properties"],
    mvn: ["pom.xml"],
    mvnw: ["pom.xml"],
    rake: ["Rakefile", "rakefile"],
    cmake: ["CMakeLists.txt"],
    "docker build": ["Dockerfile"],
    "docker compose": ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"],
  }),
);

/** Options of build programs that name the directory to work in. */
const directoryOptions = "-C --directory --prefix --cwd --dir";

function buildInputs(name: string, words: readonly string[]): CodeFile[] {
  const directories = valuesOf(words, directoryOptions);
  // make enters each directory from the one before; for others the last one counts.
  const directory = /make$/.test(name) ? directories.reduce<string | undefined>(pathIn, undefined) : directories.at(-1);
  const build = (path: string): CodeFile => ({ path: pathIn(directory, path), glob: false, use: "build" });
  if (packageManagers.test(name)) {
    const isDirectory = (word: string) => directoryOptions.split(" ").includes(word);
    const given = words.slice(1).filter((word, i) => isOperand(word) && !isDirectory(words[i] ?? ""));
    const script = /^(run|run-script)$/.test(given[0] ?? "") ? given[1] : given[0];
    const named = script === undefined ? [] : [script === "t" ? "test" : script];
    return [{ ...build("package.json"), scripts: named.flatMap((one) => [`pre${one}`, one, `post${one}`]) }];
  }
  const program = /^(docker|podman)$/.test(name) ? `docker ${words[1]}` : name;
  const named = /make$|^just$|^docker (build|compose)$/.test(program)
    ? valuesOf(words, "-f --file --makefile --justfile")
    : [];
  const targets = /^(g?make|just)$/.test(name) && { scripts: words.slice(1).filter(isOperand) };
  const context = program === "docker build" ? words.slice(2).filter(isOperand).at(-1) : undefined;
  const usual = (buildFiles.get(program) ?? []).map((path) => pathIn(context, path));
  return (named.length > 0 ? named : usual).map((path) => ({ ...build(path), ...targets }));
}

/** A pipeline at whose end an interpreter runs what it reads. */
export interface FeedingPipeline {
  /** Its canonical spelling: `curl -s URL | sh`. */
  text: string;
  /** The words of its commands. */
  stages: readonly (readonly string[])[];
}

/** Maximum commands of a pipeline, counted from its end. */
const maxStages = 8;

/** Finds the commands of a line that read their program from a pipe, each with its pipeline. */
export function pipelinesIn({ commands }: CommandLine): Map<SimpleCommand, FeedingPipeline> {
  const found = new Map<SimpleCommand, FeedingPipeline>();
  let start = 0;
  for (const [i, { join, command }] of commands.entries()) {
    if (join !== "|") start = i;
    else if (readsProgram(command.words)) {
      const stages = commands.slice(Math.max(start, i + 1 - maxStages), i + 1).map(({ command }) => command);
      const cut = i + 1 - start > maxStages ? "… | " : "";
      found.set(command, {
        text: cut + stages.map(spellCommand).join(" | "),
        stages: stages.map(({ words }) => words.map(({ value }) => value)),
      });
    }
  }
  return found;
}

/** Checks if a command, perhaps behind wrappers such as sudo, runs what it reads from its standard input. */
function readsProgram(words: readonly Word[]): boolean {
  const name = ({ value }: Word) => value.slice(value.lastIndexOf("/") + 1);
  const at = words.findIndex((word) => interpreter(name(word)) !== undefined || /^(\.|source)$/.test(word.value));
  const [outer, program] = [words[0], words[at]];
  if (!outer || !program || (at > 0 && !isWrapper(name(outer)))) return false;
  const own = interpreter(name(program));
  return own === undefined ? words.slice(at).some(isInput) : interpret(own, words.slice(at), undefined, noEffects());
}
