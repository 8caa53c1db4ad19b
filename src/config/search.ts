import { statSync } from "node:fs";
import {
  type CodeSearchName,
  codeSearchProviders,
  type LocalSearch,
  type RemoteSearch,
  type SearchProviderFacts,
  type SearchSettings,
  type WebSearchName,
  webSearchProviders,
} from "../core/search-providers.ts";
import { canonicalPath, checkOutside, readOperatorFile } from "./paths.ts";
import type { ProgramSources } from "./programs.ts";
import type { Settings } from "./schema.ts";
import { ConfigError } from "./toml.ts";

type Tables = Pick<Settings, "websearch" | "codesearch">;
type RemoteTable = Omit<NonNullable<Tables["websearch"]>, "provider">;

/** Reads the providers of the search tools and their keys. */
export function readSearch({ websearch, codesearch }: Tables, sources: ProgramSources): SearchSettings {
  return {
    websearch: websearch && readWebSearch(websearch, sources),
    codesearch: codesearch && readCodeSearch(codesearch, sources),
  };
}

/** Lists the search tools that are not offered, with the reason and the next step. */
export function notOffered({ websearch, codesearch }: Tables): string[] {
  return Object.entries({ websearch, codesearch }).flatMap(([tool, table]) =>
    table === undefined ? [`${tool} is not offered: no provider is configured; name one as provider in [${tool}]`] : [],
  );
}

/** Finds keys that would cross a network in clear. */
export function searchWarnings(settings: SearchSettings): { tool: keyof SearchSettings; message: string }[] {
  return (["websearch", "codesearch"] as const).flatMap((tool) => {
    const search = settings[tool];
    if (search === undefined || search.provider === "ripgrep" || search.key === undefined) return [];
    const { protocol, hostname } = new URL(search.url);
    if (protocol === "https:" || /^(localhost|127\.[\d.]+|\[::1\])$/.test(hostname)) return [];
    return [
      { tool, message: `the key of [${tool}] is sent to ${hostname} without encryption; use an https:// address` },
    ];
  });
}

function readWebSearch(table: NonNullable<Tables["websearch"]>, sources: ProgramSources): RemoteSearch<WebSearchName> {
  return { provider: table.provider, ...readRemote("websearch", table, webSearchProviders[table.provider], sources) };
}

function readCodeSearch(
  { provider, roots, ...table }: NonNullable<Tables["codesearch"]>,
  sources: ProgramSources,
): RemoteSearch<CodeSearchName> | LocalSearch {
  if (provider === "ripgrep") return readLocal(table, roots);
  if (roots !== undefined)
    throw new ConfigError(`codesearch: roots are for the provider "ripgrep"; remove them, or name that provider`);
  return { provider, ...readRemote("codesearch", table, codeSearchProviders[provider], sources) };
}

function readLocal(table: RemoteTable, roots: readonly string[] = []): LocalSearch {
  const foreign = (["url", "key_file", "key_env"] as const).find((key) => table[key] !== undefined);
  if (foreign !== undefined)
    throw new ConfigError(
      `codesearch: the provider "ripgrep" searches this machine and takes no ${foreign}; remove it`,
    );
  if (roots.length === 0)
    throw new ConfigError(
      `codesearch: the provider "ripgrep" needs roots; name directories, such as roots = ["~/src"]`,
    );
  const missing = roots.find((root) => !statSync(root, { throwIfNoEntry: false })?.isDirectory());
  if (missing !== undefined)
    throw new ConfigError(`codesearch: the root ${missing} is not a directory; create it or name another one`);
  return { provider: "ripgrep", roots: roots.map(canonicalPath) };
}

function readRemote(
  tool: keyof SearchSettings,
  table: RemoteTable,
  facts: SearchProviderFacts,
  sources: ProgramSources,
): Omit<RemoteSearch, "provider"> {
  const url = table.url ?? facts.url;
  if (url === undefined)
    throw new ConfigError(`${tool}: this provider has no default address; set url in [${tool}] to that of your server`);
  const key = readKey(tool, table, sources);
  if (facts.key === "none" && key !== undefined)
    throw new ConfigError(`${tool}: this provider takes no key; remove key_file and key_env from [${tool}]`);
  if (facts.key === "required" && key === undefined)
    throw new ConfigError(`${tool}: this provider needs a key; set key_file or key_env in [${tool}]`);
  return {
    url: url.replace(/\/+$/, ""),
    isUrlConfigured: table.url !== undefined,
    ...(key !== undefined && { key: () => key }),
    timeoutMs: table.timeout_ms,
  };
}

/** Reads a key. No error quotes it. */
function readKey(tool: string, { key_file: file, key_env: variable }: RemoteTable, sources: ProgramSources) {
  if (file !== undefined && variable !== undefined)
    throw new ConfigError(`${tool}: key_file and key_env are both set; remove one of them`);
  if (file === undefined && variable === undefined) return undefined;
  const key = file === undefined ? sources.env[variable ?? ""] : readKeyFile(tool, file, sources.workspaces);
  const source = file ?? `the environment variable ${variable}`;
  if (key === undefined) throw new ConfigError(`${tool}: ${source} is not set; set it, or use key_file`);
  if (!/^[!-~]{1,4096}$/.test(key))
    throw new ConfigError(
      `${tool}: ${source} is empty or is not one line of printable ASCII; write the key alone there`,
    );
  return key;
}

function readKeyFile(tool: string, file: string, workspaces: ReadonlyMap<string, string>): string {
  checkOutside(file, `the key of ${tool}`, workspaces);
  return readOperatorFile(file, `${tool}: the key file`).trim();
}
