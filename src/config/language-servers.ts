import { z } from "zod";
import type { CodeSettings, LanguageServer, ServerCommand } from "../core/language-server.ts";
import { locateProgram } from "../core/locate-program.ts";
import { strictTable } from "./check.ts";
import { ConfigError } from "./errors.ts";
import { checkOutside } from "./paths.ts";

const languages = z
  .record(z.string(), z.string().min(1))
  .refine((table) => Object.keys(table).every((extension) => /^\.[^./\s]+$/.test(extension)), {
    error: 'name each extension with its dot, such as { ".ts" = "typescript" }',
  });
const json = z.json();

/** The table of a language server. */
const serverTable = strictTable({
  command: z.string().min(1).optional(),
  args: z.array(z.string()).optional(),
  languages: languages.optional(),
  root_markers: z.array(z.string().regex(/^[^/]+$/, { error: "the name of a file, without a slash" })).optional(),
  initialization_options: json.optional(),
  settings: z.record(z.string().min(1), json).optional(),
  env: z.array(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, { error: "the name of a variable" })).optional(),
  timeout_ms: z.int().min(1).max(600_000).optional(),
  disabled: z.boolean().optional(),
});

type ServerTable = z.output<typeof serverTable>;

/** The table `[lsp]`: `diagnostics`, and a table for each language server. */
export const lspTable = z.object({ diagnostics: z.boolean().optional() }).catchall(serverTable);

type LspTable = Readonly<z.output<typeof lspTable>>;

/** Reads the language servers: the built-in ones as the tables change them, and further ones. Refuses programs that a tool could replace. */
export function readLanguageServers(
  { diagnostics = false, ...tables }: LspTable = {},
  env: Readonly<Record<string, string | undefined>>,
  workspaces: ReadonlyMap<string, string>,
): CodeSettings {
  const named = new Map(Object.entries(tables).filter(isServerEntry));
  for (const [name, { command }] of named) {
    const program = command === undefined ? undefined : locateProgram(command, env.PATH);
    if (program !== undefined) checkOutside(program, `the program of lsp "${name}"`, workspaces);
  }
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

function newServer(
  name: string,
  table: ServerTable,
  env: Readonly<Record<string, string | undefined>>,
): LanguageServer {
  const missing = (["command", "languages"] as const).find((key) => table[key] === undefined);
  if (missing !== undefined)
    throw new ConfigError(
      `lsp "${name}": ${missing} is missing, and no built-in language server has this name; built in are: ${builtInServers.map((server) => server.name).join(", ")}`,
    );
  return withTable(stdioServer(name, {}, [], ""), table, env);
}

function withTable(
  server: LanguageServer,
  table: ServerTable | undefined,
  env: Readonly<Record<string, string | undefined>>,
): LanguageServer {
  if (table === undefined) return server;
  const { command, args = [], languages, root_markers, initialization_options, settings, env: variables = [] } = table;
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
    env: Object.fromEntries(variables.flatMap((key) => (env[key] === undefined ? [] : [[key, env[key]]]))),
  };
}

/** Finds what keeps configured servers from working: programs and variables that are missing. */
export function languageServerWarnings(
  { diagnostics: _, ...tables }: LspTable = {},
  env: Readonly<Record<string, string | undefined>>,
): { name: string; message: string }[] {
  return Object.entries(tables)
    .filter(isServerEntry)
    .flatMap(([name, { command, env: variables = [] }]) => {
      const isMissing = command !== undefined && locateProgram(command, env.PATH) === undefined;
      const problems = [
        ...(isMissing ? [`the program ${command} is not found; install it, or name its path in command`] : []),
        ...variables
          .filter((key) => env[key] === undefined)
          .map((key) => `the variable ${key} is not set; set it, or take it out of env`),
      ];
      return problems.map((problem) => ({ name, message: `lsp "${name}": ${problem}` }));
    });
}

/** Makes the paths of programs absolute; a name without a slash is looked up when a server starts. */
export function withServerPaths(table: LspTable, absolute: (path: string) => string): LspTable {
  const { diagnostics, ...tables } = table;
  const servers = Object.entries(tables)
    .filter(isServerEntry)
    .map(([name, one]) => [name, one.command?.includes("/") ? { ...one, command: absolute(one.command) } : one]);
  return { ...(diagnostics !== undefined && { diagnostics }), ...Object.fromEntries(servers) };
}

/** Makes a language server that is started by one command line with the option `--stdio`. */
function stdioServer(
  name: string,
  languages: LanguageServer["languages"],
  programs: readonly string[],
  install: string,
  rootMarkers: readonly string[] = [],
): LanguageServer {
  const commands = programs.map((program) => ({ program, args: ["--stdio"] }));
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

const builtInServers: readonly LanguageServer[] = [
  {
    ...stdioServer(
      "typescript",
      { ...typescript, ...javascript },
      [],
      "npm install --save-dev typescript@7",
      lockFiles,
    ),
    commands: [native("tsc", 7), native("tsgo"), plain("typescript-language-server", "--stdio")],
  },
  stdioServer(
    "pyright",
    { ".py": "python", ".pyi": "python" },
    ["pyright-langserver", "basedpyright-langserver"],
    "npm install --global pyright",
    ["pyrightconfig.json", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile"],
  ),
  {
    ...stdioServer("gopls", { ".go": "go" }, [], "go install golang.org/x/tools/gopls@latest", ["go.work", "go.mod"]),
    commands: [plain("gopls")],
  },
  {
    ...stdioServer("clangd", { ".c": "c", ".h": "c", ...cpp }, [], "apt-get install clangd", [
      ...["compile_commands.json", "compile_flags.txt", ".clangd"],
    ]),
    commands: [plain("clangd")],
  },
  {
    ...stdioServer(
      "bash",
      { ".sh": "shellscript", ".bash": "shellscript" },
      [],
      "npm install --global bash-language-server",
    ),
    commands: [plain("bash-language-server", "start")],
  },
  stdioServer(
    "yaml",
    { ".yaml": "yaml", ".yml": "yaml" },
    ["yaml-language-server"],
    "npm install --global yaml-language-server",
  ),
  stdioServer("json", { ".json": "json", ".jsonc": "jsonc" }, ["vscode-json-language-server"], extracted),
  {
    ...stdioServer(
      "css",
      { ".css": "css", ".scss": "scss", ".less": "less" },
      ["vscode-css-language-server"],
      extracted,
    ),
    // It finds no errors where its configuration is null.
    settings: { css: { validate: true }, scss: { validate: true }, less: { validate: true } },
  },
  stdioServer("html", { ".html": "html", ".htm": "html" }, ["vscode-html-language-server"], extracted),
  {
    ...stdioServer("rust-analyzer", { ".rs": "rust" }, [], "rustup component add rust-analyzer", [
      "Cargo.lock",
      "Cargo.toml",
    ]),
    commands: [plain("rust-analyzer")],
  },
];
