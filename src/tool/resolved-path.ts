/** A path after symlinks and `..` were resolved. */
export interface ResolvedPath {
  /** The canonical absolute path: existing parts are resolved, missing ones are appended as written. */
  absolute: string;
  /** The form that asks show and rules match: relative inside the workspace, absolute outside. */
  pattern: string;
  /** True outside the workspace. */
  external: boolean;
  /** True for an existing directory. */
  isDirectory: boolean;
  /** True for a file with other names (hard links), which rules about names do not see. */
  otherNames: boolean;
  /** True for a pipe, a socket or a device. */
  isSpecial: boolean;
}
