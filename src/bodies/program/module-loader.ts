import type { LoadedFiles } from "./loaded-files.ts";

/** Imports modules of tools and plugins. A process imports each once: a changed file is loaded by another process. */
export interface ModuleLoader extends Pick<LoadedFiles, "digestOf" | "files" | "isImported"> {
  /** Imports a file by its absolute path. */
  load(path: string): Promise<Readonly<Record<string, unknown>>>;
}
