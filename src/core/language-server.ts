import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/** A language server, with what is needed to find and start it. */
export interface LanguageServer {
  readonly name: string;
  /** Extension of files, with its dot → ID of the language in the protocol. */
  readonly languages: Readonly<Record<string, string>>;
  /** Names of files that mark the root of a project. The nearest directory above a file that holds one is its root. */
  readonly rootMarkers: readonly string[];
  /** Command lines; the first one whose program is installed is run. */
  readonly commands: readonly ServerCommand[];
  /** The line that installs it. */
  readonly install: string;
  /** Sent when it starts. */
  readonly initializationOptions?: JsonValue;
  /** Returned when it asks for its configuration: by section, such as `python`. */
  readonly settings: JsonObject;
  /** Time in which it must answer. */
  readonly timeoutMs: number;
  /** Variables that it gets in addition to those of commands. */
  readonly env: Readonly<Record<string, string>>;
}

/** A command line of a language server. */
export interface ServerCommand {
  /** Path of the program, or its name. */
  readonly program: string;
  readonly args: readonly string[];
  /** Minimum major version of the npm package that the program belongs to. */
  readonly minMajor?: number;
}

/** The language servers as they are configured. */
export interface CodeSettings {
  readonly languageServers: readonly LanguageServer[];
  /** True if `edit` and `write` report new errors. */
  readonly reportsDiagnostics: boolean;
}
