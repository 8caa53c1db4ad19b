/** The entries of a directory without links. */
export interface DirectoryNames {
  readonly directories: readonly string[];
  readonly files: readonly string[];
}

/** The names below the roots, as they are now. */
export interface NameTree {
  list(directory: string): DirectoryNames | undefined;
  /** Returns the entries of a directory that a filter selects, with their bits. */
  select(directory: string, filter: NameFilter): ReadonlyMap<string, number>;
}

/** A test of names whose results are cached by its key. */
export interface NameFilter {
  readonly key: string;
  /** Returns the bits of `nameHits`; 0 for a name that nothing restricts. */
  test(name: string): number;
}
