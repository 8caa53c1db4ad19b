/** Facts about a provider of searches that its configuration depends on. */
export interface SearchProviderFacts {
  /** The base address unless the configuration names one; undefined: it must. */
  readonly url?: string;
  /** Handling of a key in the configuration: refused, accepted or required. */
  readonly key: "none" | "optional" | "required";
}

/** Providers of `websearch`, by the name in the configuration. */
export const webSearchProviders = {
  searxng: { key: "none" },
  exa: { url: "https://api.exa.ai", key: "required" },
  brave: { url: "https://api.search.brave.com", key: "required" },
} as const satisfies Readonly<Record<string, SearchProviderFacts>>;

/** Remote providers of `codesearch`, by the name in the configuration; `ripgrep` searches directories of this machine. */
export const codeSearchProviders = {
  sourcegraph: { url: "https://sourcegraph.com", key: "optional" },
} as const satisfies Readonly<Record<string, SearchProviderFacts>>;

/** The name of a provider of `websearch`. */
export type WebSearchName = keyof typeof webSearchProviders;

/** The name of a remote provider of `codesearch`. */
export type CodeSearchName = keyof typeof codeSearchProviders;

/** The configured provider of a search over HTTP. */
export interface RemoteSearch<Name extends string = string> {
  readonly provider: Name;
  /** The base address, without a slash at its end. */
  readonly url: string;
  /** True if the configuration names the address: then its host need not be public. */
  readonly isUrlConfigured: boolean;
  /** Returns the key. A function, so that nothing that prints a configuration prints the key. */
  readonly key?: () => string;
  readonly timeoutMs: number;
}

/** The configured search of directories of this machine. */
export interface LocalSearch {
  readonly provider: "ripgrep";
  /** Canonical directories. */
  readonly roots: readonly string[];
}

/** The search tools as they are configured; a tool without a provider is not offered. */
export interface SearchSettings {
  readonly websearch: RemoteSearch<WebSearchName> | undefined;
  readonly codesearch: RemoteSearch<CodeSearchName> | LocalSearch | undefined;
}
