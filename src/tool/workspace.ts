import type { Ask } from "./tool.ts";

/** A path after symlinks, `..` and case were looked through. */
export interface ResolvedPath {
  /** The canonical absolute path: every existing part is resolved; what does not exist yet is appended as written. */
  absolute: string;
  /** What asks show and rules meet: relative to the workspace inside it, absolute outside. */
  pattern: string;
  /** Whether it lies outside the workspace. */
  external: boolean;
}

/** The folder in which an agent works. */
export interface Workspace {
  /** `NAME` or `NAME/folder`. */
  name: string;
  /** Its canonical absolute path. */
  directory: string;
  /** Resolves a path as a tool got it: relative ones against the workspace, `~` as home. It may lie outside. */
  resolve(path: string): Promise<ResolvedPath>;
}

export declare function openWorkspace(name: string, directory: string): Promise<Workspace>;

/** The asks for touching one file or folder: `external_directory` in addition where it lies outside. */
export declare function pathAsks(permission: string, path: ResolvedPath, metadata?: Ask["metadata"]): Ask[];
