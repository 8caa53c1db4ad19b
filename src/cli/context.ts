import type { Readable, Writable } from "node:stream";
import type { ReadStream, WriteStream } from "node:tty";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { CreateTokenRequestSchema, Credential } from "../../gen/opencode/tool/v1/credential_service_pb.ts";

/** A stream that may be a terminal. */
export type InputStream = Readable & Partial<Pick<ReadStream, "isTTY" | "setRawMode">>;

/** A stream that may be a terminal. */
export type OutputStream = Writable & Partial<Pick<WriteStream, "isTTY" | "columns" | "rows" | "hasColors">>;

/** The streams and the environment of one command line; `process` is one. */
export interface CliProcess {
  readonly stdin: InputStream;
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  readonly env: NodeJS.ProcessEnv;
}

/** Options to start a server with, by their names in camel case; the configuration file, then the defaults, fill in absent ones. */
export type ServeFlags = Readonly<Record<string, string | boolean>>;

/** A server that has started. */
export interface Served {
  url: string;
  dataDirectory: string;
  /** Name → directory. */
  workspaces: ReadonlyMap<string, string>;
  isTls: boolean;
  isOpenToAll: boolean;
  unattended: "wait" | "deny";
  /** The file of the generated caller token, if there is one. */
  callerTokenFile?: string;
  /** Facts about this machine that weaken the sandbox of commands. */
  warnings: readonly string[];
  /** True if this start replaced the approver token of an earlier version by its hash. */
  adoptedApprover: boolean;
  /** Creates a one-time code with which a person signs in; undefined without authentication. */
  createSignInCode(): string | undefined;
}

/** Settings to embed a service with. */
export interface EmbedFlags {
  workspace?: string;
  config?: string;
}

/** A service inside this process; only holders of its two tokens can call and approve. */
export interface Embedded {
  url: string;
  tokens: { caller: string; approver: string };
  close(): Promise<void>;
}

/** Place of the table of credentials. */
export interface TableFlags {
  data?: string;
  config?: string;
}

/** The table of credentials, opened without a service. */
export interface LocalCredentials {
  /** The data directory, or `Redis`. */
  readonly place: string;
  list(): readonly Credential[];
  create(wanted: MessageInitShape<typeof CreateTokenRequestSchema>): Promise<{ token: string; credential: Credential }>;
  /** Throws if there is no credential of that id. */
  revoke(id: string): Promise<Credential>;
  close(): Promise<void>;
}

/** Paths that `toolgate trust` works with. */
export interface TrustFlags {
  data?: string;
  config?: string;
  remove?: boolean;
}

/** The result of a restore. */
export interface RestoredBackup {
  /** Time of the backup, in ms since the epoch. */
  created: number;
  storeId: string;
  /** Numbers of stored outputs, of open calls, which ended, and of grants, which are suspended. */
  outputs: number;
  calls: number;
  grants: number;
  /** The directory that holds the store that was there before. */
  before?: string;
}

/** The result of a configuration check. */
export interface CheckedConfig {
  /** The file that was read. */
  file: string;
  /** The number of rules and of tests in it. */
  rules: number;
  tests: number;
  /** Ordered by line. An error prevents a start, a warning does not. */
  findings: readonly { severity: "error" | "warning"; line: number | undefined; message: string }[];
  /** Tools that a service with it does not offer, with the reason. */
  notes: readonly string[];
}

/** Recorded decisions that this version has repeated, by the rules that made them. */
export interface RepeatedDecisions {
  judged: number;
  /** Those of the same rules that it makes otherwise, and those that cannot be repeated. */
  otherwise: readonly { reason: string; decisions: number }[];
  notJudged: readonly { reason: string; decisions: number }[];
}

/** The service itself, for the commands that run it or read its files; the others only talk to one. */
export interface LocalService {
  /** Serves until the process gets a signal to stop; calls `onStart` once it listens. */
  serveUntilStopped(flags: ServeFlags, onStart: (served: Served) => void): Promise<void>;
  /** Starts a service whose store is deleted when it closes. */
  embedService(flags: EmbedFlags): Promise<Embedded>;
  /** Checks a configuration file; without a name, the file that a server would read. */
  checkConfiguration(file?: string): Promise<CheckedConfig>;
  /** Reads the tables of the rules of a configuration, as TOML. */
  candidateOfFile(file: string): string;
  /** Returns the number of the store's format that this version writes, and whether replicas share the store. */
  formatOfStore(flags: TableFlags): Promise<{ format: number; isShared: boolean }>;
  /** Repeats the recorded decisions of a backup. Nothing runs, and nothing is written but a copy that is removed. */
  repeatBackup(flags: TableFlags, backup: string): Promise<RepeatedDecisions>;
  /** Opens the table of credentials of a data directory, or of the Redis that the configuration names. */
  openLocalCredentials(flags: TableFlags): Promise<LocalCredentials>;
  /** Restores a backup into a data directory that no service uses. */
  restoreDirectory(file: string, data: string): Promise<RestoredBackup>;
  /** Lets the code in a workspace's `.opencode` run in the service and its skills be used, or stops that; returns their files. */
  trustDirectory(
    directory: string,
    flags: TrustFlags,
  ): Promise<Record<"tools" | "plugins" | "policy" | "skills", string[]> & { directory: string }>;
}

/** Everything that a command gets from the program around it. */
export interface CliContext {
  readonly io: CliProcess;
  readonly version: string;
  /** The words that run this program, by absolute paths, for the configuration of agents. */
  readonly program: readonly string[];
  /** Loads the service; commands that only talk to one do not pay for it. */
  loadService(): Promise<LocalService>;
  /** Sets the exit code of the command line. */
  setExitCode(code: number): void;
}
