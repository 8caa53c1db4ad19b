import type { CodeSettings, LanguageServer, ServerCommand } from "../core/language-server.ts";
import {
  checkProgram,
  missingProgram,
  type ProgramSources,
  setVariables,
  type TableWarning,
  unsetVariables,
  warningsOf,
} from "./programs.ts";
import type { Settings } from "./schema.ts";
import { ConfigError } from "./toml.ts";

type LspTable = Settings["lsp"];
type ServerTable = Extract<LspTable[string], object>;

/** Reads the language servers: the built-in ones as the tables change them, and further ones. Refuses programs that a tool could replace. */
export function readLanguageServers({ diagnostics, ...tables }: LspTable, sources: ProgramSources): CodeSettings {
  const named = new Map(Object.entries(tables).filter(isServerEntry));
  for (const [name, { command }] of named) if (command !== undefined) checkProgram(command, `lsp "${name}"`, sources);
  const { env } = sources;
  const builtIn = builtInServers.map((server) => withTable(server, named.get(server.name), env));
  const isBuiltIn = (name: string) => builtInServers.some((server) => server.name === name);
  const added = [...named].filter(([name]) => !isBuiltIn(name)).map(([name, table]) => newServer(name, table, env));
  const isDisabled = ({ name }: LanguageServer) => named.get(name)?.disabled === true;
  // Later ones take precedence, so that a new server may take over the files of a built-in one.
  return {
    languageServers: [...added, ...builtIn].filter((server) => !isDisabled(server)),
    reportsDiagnostics: diagnostics,
  };
}

const isServerEntry = (entry: [string, unknown]): entry is [string, ServerTable] => typeof entry[1] === "object";

function newServer(name: string, table: ServerTable, env: ProgramSources["env"]): LanguageServer {
  const missing = (["command", "languages"] as const).find((key) => table[key] === undefined);
  if (missing !== undefined)
    throw new ConfigError(
      `lsp "${name}": ${missing} is missing, and no built-in language server has this name; built in are: ${builtInServers.map((server) => server.name).join(", ")}`,
    );
  return withTable(serverOf(name, {}, [], ""), table, env);
}

function withTable(server: LanguageServer, table: ServerTable | undefined, env: ProgramSources["env"]): LanguageServer {
  if (table === undefined) return server;
  const { command, args, languages, root_markers, initialization_options, settings } = table;
  return {
    ...server,
    ...(command !== undefined && {
      commands: [{ program: command, args }],
      install: `install ${command}, or correct command in [lsp.${server.name}]`,
    }),
    ...(languages && { languages }),
    ...(root_markers && { rootMarkers: root_markers }),
    ...(initialization_options !== undefined && { initializationOptions: initialization_options }),
    ...(settings && { settings: { ...server.settings, ...settings } }),
    ...(table.timeout_ms !== undefined && { timeoutMs: table.timeout_ms }),
    env: setVariables(table.env, env),
  };
}

/** Finds what keeps configured servers from working: programs and variables that are missing. */
export function languageServerWarnings(
  { diagnostics: _, ...tables }: LspTable,
  env: ProgramSources["env"],
): TableWarning[] {
  return Object.entries(tables)
    .filter(isServerEntry)
    .flatMap(([name, { command, env: variables }]) =>
      warningsOf("lsp", name, [
        ...(command === undefined ? [] : missingProgram(command, env.PATH)),
        ...unsetVariables(variables, env).map((key) => `the variable ${key} is not set; set it, or take it out of env`),
      ]),
    );
}

function serverOf(
  name: string,
  languages: LanguageServer["languages"],
  commands: readonly ServerCommand[],
  install: string,
  rootMarkers: readonly string[] = [],
): LanguageServer {
  return { ...{ name, languages, commands, install, rootMarkers }, ...{ settings: {}, env: {}, timeoutMs: 15_000 } };
}

const javascript = { ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".jsx": "javascriptreact" };
const typescript = { ".ts": "typescript", ".mts": "typescript", ".cts": "typescript", ".tsx": "typescriptreact" };
const cpp = Object.fromEntries([".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"].map((name) => [name, "cpp"]));
const lockFiles = ["package-lock.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"];
const extracted = "npm install --global vscode-langservers-extracted";

const native = (program: string, minMajor?: number): ServerCommand => ({
  ...{ program, args: ["--lsp", "--stdio"] },
  ...(minMajor !== undefined && { minMajor }),
});

const plain = (program: string, ...args: string[]): ServerCommand => ({ program, args });
const stdio = (program: string) => plain(program, "--stdio");

const builtInServers: readonly LanguageServer[] = [
  serverOf(
    "typescript",
    { ...typescript, ...javascript },
    [native("tsc", 7), native("tsgo"), stdio("typescript-language-server")],
    "npm install --save-dev typescript@7",
    lockFiles,
  ),
  serverOf(
    "pyright",
    { ".py": "python", ".pyi": "python" },
    [stdio("pyright-langserver"), stdio("basedpyright-langserver")],
    "npm install --global pyright",
    ["pyrightconfig.json", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile"],
  ),
  serverOf("gopls", { ".go": "go" }, [plain("gopls")], "go install golang.org/x/tools/gopls@latest", [
    "go.work",
    "go.mod",
  ]),
  serverOf("clangd", { ".c": "c", ".h": "c", ...cpp }, [plain("clangd")], "apt-get install clangd", [
    ...["compile_commands.json", "compile_flags.txt", ".clangd"],
  ]),
  serverOf(
    "bash",
    { ".sh": "shellscript", ".bash": "shellscript" },
    [plain("bash-language-server", "start")],
    "npm install --global bash-language-server",
  ),
  serverOf(
    "yaml",
    { ".yaml": "yaml", ".yml": "yaml" },
    [stdio("yaml-language-server")],
    "npm install --global yaml-language-server",
  ),
  serverOf("json", { ".json": "json", ".jsonc": "jsonc" }, [stdio("vscode-json-language-server")], extracted),
  {
    ...serverOf(
      "css",
      { ".css": "css", ".scss": "scss", ".less": "less" },
      [stdio("vscode-css-language-server")],
      extracted,
    ),
    // It finds no errors where its configuration is null.
    settings: { css: { validate: true }, scss: { validate: true }, less: { validate: true } },
  },
  serverOf("html", { ".html": "html", ".htm": "html" }, [stdio("vscode-html-language-server")], extracted),
  serverOf("rust-analyzer", { ".rs": "rust" }, [plain("rust-analyzer")], "rustup component add rust-analyzer", [
    ...["Cargo.lock", "Cargo.toml"],
  ]),
];
