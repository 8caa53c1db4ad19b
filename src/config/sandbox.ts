import { canonicalPath } from "./paths.ts";
import type { Settings } from "./schema.ts";

/** Confinement of commands: the files that they may change, and access to the network. */
export interface Confinement {
  readonly profile: "off" | "workspace-write" | "read-only";
  /** The hosts that commands reach: those that rules or a person allow, none, or all. */
  readonly network: "proxy" | "none" | "open";
  /** True if commands can open sockets of the family UNIX. */
  readonly unixSockets: boolean;
  /** True if commands can trace each other. */
  readonly ptrace: boolean;
}

/** The confinement of commands, with the exceptions of single agents. */
export interface SandboxSettings extends Confinement {
  /** The agents with another confinement. */
  readonly agents: ReadonlyMap<string, Confinement>;
  /** True if the file asks for a sandbox: the service does not start without one. */
  readonly required: boolean;
  /** Maximum memory of all processes of a command, in bytes; undefined: three quarters of that of this machine. */
  readonly maxMemoryBytes: number | undefined;
  /** True if no command may run without all parts of its sandbox. */
  readonly requireAll: boolean;
  /** Maximum number of files that are hidden from a command one by one. */
  readonly maxMasks: number;
  /** True if the file gives `network` as a boolean, as earlier versions did. */
  readonly hasBooleanNetwork: boolean;
  /** Additional directories that are writable in `workspace-write`. */
  readonly writable: readonly string[];
  /** Additional paths that commands can read. */
  readonly readable: readonly string[];
  /** Canonical paths of the operator's files that no command may see, in addition to the data directory. */
  readonly hidden: readonly string[];
}

/** Reads the sandbox settings. `files` are further files to hide from commands. */
export function readSandbox(settings: Settings, files: readonly string[]): SandboxSettings {
  const { agent, writable, readable, require, masks_max: maxMasks, memory_max, ...own } = settings.sandbox;
  const tables = [own, ...Object.values(agent)];
  const { tls_key, token, oidc, channel, audit_export, websearch, codesearch } = settings;
  const secrets = [
    ...[tls_key, websearch?.key_file, codesearch?.key_file],
    ...token.map(({ file }) => file),
    ...Object.values(oidc).map(({ client_secret_file }) => client_secret_file),
    ...[...Object.values(channel), ...Object.values(audit_export)].map(({ secret_file }) => secret_file),
  ];
  return {
    ...confinement(own),
    agents: new Map(Object.entries(agent).map(([name, other]) => [name, confinement({ ...own, ...other })])),
    maxMasks,
    requireAll: require,
    maxMemoryBytes: memory_max,
    required: require || tables.some(({ profile }) => profile !== undefined && profile !== "off"),
    hasBooleanNetwork: tables.some(({ network }) => typeof network === "boolean"),
    writable: writable.map(canonicalPath),
    readable: readable.map(canonicalPath),
    hidden: [...files, ...secrets.filter((file) => file !== undefined)].map(canonicalPath),
  };
}

function confinement({
  profile = "workspace-write",
  network = "proxy",
  unix_sockets: unixSockets = false,
  ptrace = false,
}: Settings["sandbox"]["agent"][string]): Confinement {
  const access = typeof network === "boolean" ? (network ? "proxy" : "none") : network;
  return { profile, network: access, unixSockets, ptrace };
}
