import { availableParallelism } from "node:os";
import ipaddr from "ipaddr.js";
import { z } from "zod";
import { roleNames } from "../core/principal.ts";
import { riskConfigNames } from "../core/risk-words.ts";
import { codeSearchProviders, webSearchProviders } from "../core/search-providers.ts";
import { parseRules, RuleError } from "../policy/parse-rules.ts";
import {
  type CamelKeys,
  camelKeys,
  defaultOf,
  type KeyFacts,
  key,
  keysOf,
  path,
  program,
  strictTable,
  withoutWrappers,
} from "./keys.ts";

/** An address to listen on. Port 0 takes a free port. */
export interface ListenAddress {
  readonly host: string;
  readonly port: number;
  /** Descriptor of a socket that listens there already, from the program that started this one. */
  readonly descriptor?: number;
}

const day = 86_400_000;
const maxBytes = 1_099_511_627_776;
const ms = z.int({
  error: ({ code }) => (code === "invalid_type" ? "write a whole number of milliseconds" : undefined),
});
const milliseconds = (max: number, min = 1) => ms.min(min).max(max);
const count = (max = 1_000_000, min = 1) => z.int().min(min).max(max);
const bytes = (max: number, min = 1_024) => z.int().min(min).max(max);
const text = () => z.string().min(1);
const texts = () => z.array(text());

/** The name of an agent, a workspace root or a token. */
const name = () =>
  z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, {
    error: "a name is 1 to 64 letters, digits, dots, dashes or underscores",
  });
const variable = z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, { error: "the name of a variable" });
const variables = () => z.array(variable).default([]);

const listen = z
  .string()
  .regex(/^(\[[0-9a-fA-F:.]+\]|[^\s:[\]]+):\d{1,5}$/, {
    error: 'write it as HOST:PORT, such as "127.0.0.1:7420" or "[::1]:7420"',
  })
  .refine((address) => Number(/\d+$/.exec(address)) <= 65_535, {
    error: "the port is too high; choose one from 0 (any free port) to 65535",
    abort: true,
  })
  .transform((address): ListenAddress => {
    const colon = address.lastIndexOf(":");
    return { host: address.slice(0, colon).replace(/^\[|\]$/g, ""), port: Number(address.slice(colon + 1)) };
  });

const origin = z.string().refine((written) => URL.canParse(written) && new URL(written).origin === written, {
  error: 'an origin is scheme, host and port without a path, such as "https://console.example"',
});

const network = z.string().refine((written) => ipaddr.isValid(written) || ipaddr.isValidCIDR(written), {
  error: 'an address or a network, such as "10.0.0.5" or "10.0.0.0/24"',
});

const webAddress = z
  .string()
  .refine((written) => URL.canParse(written) && /^https?:$/.test(new URL(written).protocol), {
    error: 'an address with http:// or https://, such as "https://mcp.example/mcp"',
  });

const baseAddress = z.string().refine(isBaseAddress, {
  error:
    'write an address with http:// or https://, without user name, password, ? and #, such as "https://search.example"',
});

function isBaseAddress(written: string): boolean {
  if (!URL.canParse(written) || /[\s?#\p{Cc}]/u.test(written)) return false;
  const { protocol, username, password } = new URL(written);
  return /^https?:$/.test(protocol) && username === "" && password === "";
}

const registry = z.string().regex(/^[a-z0-9-]+(\.[a-z0-9-]+)+$/, { error: 'a host, such as "packages.example"' });

const rules = z.unknown().superRefine((table, context) => {
  try {
    parseRules(table, "", "");
  } catch (error) {
    if (!(error instanceof RuleError)) throw error;
    context.addIssue({ code: "custom", path: error.path.slice(1), message: error.problem });
  }
});

const policyTables = {
  permission: key(rules.optional(), "rules, in order", { see: "policy.md" }),
  agent: z
    .record(
      name(),
      strictTable({
        description: key(z.string().optional(), "an agent, and what it is for"),
        permission: key(rules.optional(), "its rules, after those of all agents"),
      }),
    )
    .default({}),
};

const preset = strictTable({
  name: key(z.enum(["contained"]).optional(), "rules between the built-in ones and yours, see ListRules", {
    without: "no preset: all commands ask",
    see: "fewer-questions.md",
  }),
  registries: key(z.array(registry).default([]), "hosts from which commands may install packages by name"),
}).prefault({});

const confinement = {
  profile: key(
    z.enum(["off", "workspace-write", "read-only"]).optional(),
    "what commands may change; this and the next three also in `[sandbox.agent.NAME]`",
    { without: "`workspace-write`", see: "configuration.md#sandbox" },
  ),
  network: key(z.union([z.enum(["proxy", "none", "open"]), z.boolean()]).optional(), "which hosts commands reach", {
    without: "`proxy`",
    see: "configuration.md#network-of-commands",
  }),
  unix_sockets: key(
    z.boolean().optional(),
    "commands open sockets of the family UNIX (local databases, agents for keys)",
    { without: "`false`" },
  ),
  ptrace: key(z.boolean().optional(), "commands trace each other (`strace`, debuggers)", { without: "`false`" }),
};

const sandbox = strictTable({
  ...confinement,
  agent: key(z.record(name(), strictTable(confinement)).default({}), "another confinement of one agent", {
    without: "that of all",
  }),
  writable: key(
    z.array(path()).default([]),
    'further directories that `workspace-write` leaves writable, such as `["~/.npm", "~/.cache"]`',
  ),
  readable: key(
    z.array(path()).default([]),
    'further files and directories that commands see, such as `["~/.ssh", "/data/sets"]`',
    { see: "configuration.md#what-commands-see-of-the-disk" },
  ),
  require: key(
    z.boolean().default(false),
    "without all layers of the sandbox the service does not start, nor do commands",
  ),
  masks_max: key(
    count(1_000, 0).default(100),
    "how many files are hidden from a command one by one; above that it asks",
    { see: "security.md#what-commands-see" },
  ),
  memory_max: key(
    bytes(17_592_186_044_416, 16_777_216).optional(),
    "memory of all processes of a command, above which it is killed",
    { unit: "bytes", without: "¾ of the machine's" },
  ),
});

const tokenSources = ["value", "file", "env", "sha256"] as const;

const workerLimits = {
  tools: key(
    z
      .array(z.string().regex(/^[A-Za-z0-9_*-]{1,64}$/, { error: "a tool's name, or a pattern such as ci_*" }))
      .optional(),
    "the tools that a worker may bring; this and the next four are for the role `worker`",
  ),
  permissions: key(texts().optional(), "what these tools may ask in addition to their own names"),
  calls: key(texts().optional(), "the tools that their bodies may call"),
  idempotent: key(z.boolean().optional(), "they may run again after their worker was lost, where they declare that", {
    without: "`false`",
  }),
  pin: key(
    z.array(z.string().regex(/^[0-9a-f]{32}$/, { error: "the ID of a definition has 32 hex digits" })).optional(),
    "the only definition IDs that are served",
    { without: "all" },
  ),
};
const rights = {
  agents: key(texts().default(["*"]), "the agents as which it may act"),
  workspaces: key(texts().default(["*"]), "the workspaces in which it may act"),
  ...workerLimits,
};

const token = strictTable({
  id: key(name(), "name of the principal", { see: "configuration.md#tokens" }),
  roles: key(z.array(z.enum(roleNames)).min(1), "what it may do"),
  person: key(text().optional(), "the person who answers with it, as `PROVIDER:SUBJECT` or `local:SUBJECT`", {
    without: "the token itself",
  }),
  ...rights,
  value: key(z.string().optional(), "the token, with at least 20 characters; or one of the next three"),
  file: key(path().optional(), "the file with the token"),
  env: key(z.string().optional(), "the environment variable with the token"),
  sha256: key(
    z
      .string()
      .regex(/^[0-9a-f]{64}$/, { error: "write the 64 hex digits that `printf %s TOKEN | sha256sum` prints" })
      .optional(),
    "the SHA-256 of the token, in hex",
  ),
}).refine((written) => tokenSources.filter((source) => written[source] !== undefined).length === 1, {
  error: "a token has exactly one of value, file, env and sha256",
});

/** Roles of programs. A person answers, and no token of an issuer is a person. */
const programRoles = ["caller", "host", "worker", "watcher"] as const;

const jwt = strictTable({
  issuer: key(text(), "accept tokens (JWT) of this issuer, as they write it in `iss`", {
    see: "team.md#tokens-of-an-issuer",
  }),
  audience: key(text(), "the audience for which they must be"),
  typ: key(text().default("at+jwt"), "their header `typ`; `any` for issuers that write none"),
  subject: key(text(), "the subjects that are let in; `*` matches any characters"),
  jwks_file: key(path().optional(), "the keys of the issuer (JWKS)", { without: "those that it publishes" }),
  roles: key(z.array(z.enum(programRoles)).min(1).default(["caller"]), "what they may do"),
  ...rights,
});

const clientCert = strictTable({
  san: key(
    text(),
    "accept client certificates with this DNS name or URI in place of a token; `*` matches any characters",
    {
      see: "team.md#certificates",
    },
  ),
  roles: key(z.array(z.enum(programRoles)).min(1).default(["caller"]), "what these programs may do"),
  ...rights,
});

/** A time such as `90s`, `30m`, `12h` or `30d`. */
const duration = () =>
  z.string().regex(/^[1-9]\d{0,4}[smhd]$/, { error: 'a time is a number with s, m, h or d, such as "12h"' });

/** Roles of persons. */
const personRoles = ["approver", "watcher", "admin"] as const;

const oidc = strictTable({
  issuer: key(text(), "people sign in at this identity provider (OpenID Connect): its address, as it names itself", {
    see: "team.md#sign-in-at-your-identity-provider",
  }),
  client_id: key(text(), "the client that Toolgate is there"),
  client_secret_file: key(path().optional(), "the file with the secret of the client", {
    without: "a public client, whose groups count for four hours after the sign-in",
  }),
  scopes: key(texts().default(["openid", "profile"]), "what is asked of it; some name groups only with another scope"),
  groups_claim: key(text().default("groups"), "the claim that names the groups of a person"),
  session: key(duration().default("12h"), "how long a sign-in is valid"),
  device_flow_may_approve: key(
    z.boolean().default(false),
    "a sign-in with `login --device` may approve: a stranger who gets a person to enter a code signs in as that person",
  ),
});

const roleMap = strictTable({
  issuer: key(name(), "the NAME of an `[oidc.NAME]`; who fits no entry may not sign in"),
  group: key(text().optional(), "a group that it names, or `*` for everyone; or the next"),
  subject: key(text().optional(), "a subject (`sub`), where it names no groups"),
  roles: key(z.array(z.enum(personRoles)).min(1), "what these persons may do"),
}).refine(({ group, subject }) => (group === undefined) !== (subject === undefined), {
  error: "an entry has exactly one of group and subject",
});

const group = strictTable({
  members: key(
    texts().default([]),
    "a group of persons: each as `PROVIDER:SUBJECT`, or `local:SUBJECT` for one who signed in with a code",
  ),
  claims: key(texts().default([]), "groups of identity providers whose members are in it, as `PROVIDER:GROUP`"),
});

const pushHost = z.string().regex(/^(?:(?:\*\.)?[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9.-]+:\d+|\[[0-9a-f:]+\]:\d+)$/, {
  error: 'write a host, such as "push.example", "*.push.example" or "127.0.0.1:8080"',
});

const channel = strictTable({
  kind: key(
    z.enum(["webhook", "ntfy", "push", "slack"]),
    "a way to reach people; needs `public_url`. `push` reaches the browsers in which they pressed Notify me",
  ),
  url: key(
    baseAddress.optional(),
    "address that notices are sent to: the receiver, or the server of ntfy. One on a private network needs its port",
    { without: "that of Slack" },
  ),
  push_hosts: key(
    z.array(pushHost).optional(),
    "hosts of the push services to which messages may go; `*.` stands for any name below. One on a private network needs its port",
    { without: "those of the browsers' vendors" },
  ),
  secret_file: key(
    path().optional(),
    "the file with the keys of a webhook (`whsec_…` or `whsk_…`), one a line, with the access token of ntfy, or with the tokens of Slack (`xoxb-…` and `xapp-…`)",
  ),
  to: key(text().optional(), "the topic of ntfy, or the id of the channel of Slack (`C…`)"),
  team: key(text().optional(), "the id of the team of Slack (`T…`)"),
  content: key(
    z.enum(["none", "risk", "full"]).default("risk"),
    "what leaves the service: only the link, also agent, permission and risks, or also what is asked",
  ),
});

const auditExport = strictTable({
  file: key(path().optional(), "the file to which the audit is appended as JSON lines, outside every workspace", {
    see: "operations.md#export-of-the-audit",
  }),
  url: key(
    baseAddress.optional(),
    "the address to which it is posted as JSON lines. One on a private network needs its port",
  ),
  secret_file: key(path().optional(), "the file with the token that `url` gets as `Authorization: Bearer`"),
});

const notify = strictTable({
  permission: key(text().default("*"), "requests that are sent to channels; the first entry that fits decides"),
  risk: key(z.array(z.enum(riskConfigNames)).default([]), "only with one of these risks", { without: "all" }),
  agent: key(text().default("*"), "only of these agents"),
  workspace: key(text().default("*"), "only in these workspaces"),
  channels: key(z.array(name()).max(8), "the names of the channels; none: nobody is notified"),
  to: key(
    texts().default([]),
    "persons (`PROVIDER:SUBJECT`) and groups (NAME of `[group.NAME]`) whom channels reach that address persons",
    { without: "all" },
  ),
  after: key(
    z.union([z.literal("0s"), duration()]).default("0s"),
    "how long a request waits first; one that is answered meanwhile is not sent",
  ),
  approve: key(z.boolean().default(false), "people may approve at these channels what their messages show whole", {
    see: "phone.md#answer-at-a-channel",
  }),
});

const requirement = strictTable({
  from: key(texts().min(1), "persons of these groups as well"),
  approve: key(count(20).default(1), "how many"),
});

const escalation = strictTable({
  after: key(duration(), "while they stay open for so long"),
  to: key(texts().default([]), "these groups may approve as well"),
  channels: key(texts().default([]), "and these channels get a notice"),
});

const approval = strictTable({
  permission: key(text().default("*"), "requests that several persons or groups approve", {
    see: "team.md#deciding-together",
  }),
  pattern: key(text().default("*"), "only these"),
  risk: key(z.array(z.enum(riskConfigNames)).default([]), "only with one of these risks", { without: "all" }),
  agent: key(text().default("*"), "only of these agents"),
  workspace: key(text().default("*"), "only in these workspaces"),
  approve: key(count(20).default(1), "how many have to approve"),
  reject: key(count(20).default(1), "how many have to reject"),
  from: key(texts().default([]), "groups whose members may approve", {
    without: "any approver",
  }),
  also: z.array(requirement).default([]),
  reason: key(z.enum(["optional", "required"]).default("optional"), "an approval needs a reason"),
  method: key(
    z.enum(["relay", "channel", "token", "session", "fresh_session", "passkey"]).optional(),
    "the least proof of the person, weakest first; `fresh_session` is a sign-in of the last five minutes",
    { without: "any", see: "team.md#passkeys" },
  ),
  shown: key(z.boolean().default(false), "an approval counts only of the whole request"),
  other_person: key(z.boolean().optional(), "the person behind the agent may not approve", {
    without: "`true` with `approve` of 2 or more",
  }),
  ask: key(duration().optional(), "how long they stay open, at most `30d`", { without: "`ask_ms`" }),
  always: key(z.boolean().default(true), "an offer that all choose is saved"),
  times: key(count(1000).optional(), "further calls that a saved offer covers", { without: "any number" }),
  escalate: z.array(escalation).default([]),
});

const agentRunner = strictTable({
  command: key(program(), "a program that runs agents for `task` over ACP", { see: "agents/acp.md" }),
  args: key(z.array(z.string()).default([]), "its arguments"),
  env: key(variables(), "variables that it gets in addition to PATH and HOME"),
  agents: key(z.array(name()).min(1), "the agents that it runs"),
  cwd: key(text().default("."), "directory in which it works, below that of its session"),
});

const upstream = strictTable({
  command: key(
    program().optional(),
    "the program, which speaks MCP over stdin and stdout. A program in a workspace is refused",
  ),
  args: key(z.array(z.string()).optional(), "its arguments, which approvers see"),
  env: key(z.array(variable).optional(), "variables that it gets in addition to PATH and HOME. Secrets belong here"),
  folders: key(
    z.array(path()).optional(),
    "directories that it may read and change; the first one is its working directory",
  ),
  hosts: key(
    texts().optional(),
    "wildcards of the hosts that it reaches, such as `*.example.com`. Nobody is asked about others",
  ),
  url: key(
    webAddress.optional(),
    "instead of `command`: the address of a server over HTTP, also of the form before 2025 with events",
  ),
  headers: key(z.record(text(), z.string()).optional(), "headers with their values"),
  header_env: key(z.record(text(), variable).optional(), "headers whose values are variables"),
  tools: key(texts().optional(), "wildcards of the tools to offer, by their names at the server", { without: "all" }),
  patterns: key(z.record(text(), text()).default({}), "what a call of a tool asks for; see below", {
    without: "the arguments",
  }),
  trusted: key(z.boolean().default(false), "what the server says of the effects of its tools counts"),
  timeout_ms: key(
    z.int().min(1).max(3_600_000).default(60_000),
    "time without an answer or progress after which a call fails; the time of questions does not count",
  ),
})
  .refine(({ command, url }) => (command === undefined) !== (url === undefined), {
    error: "an MCP server has exactly one of command and url",
  })
  .refine(
    ({ url, args, env, folders, hosts }) =>
      url === undefined || [args, env, folders, hosts].every((set) => set === undefined),
    { error: "args, env, folders and hosts are for a command; a url has headers and header_env" },
  )
  .refine(({ command, headers, header_env }) => command === undefined || (headers ?? header_env) === undefined, {
    error: "headers and header_env are for a url; a command has env",
  });

const json = z.json();
const ofBuiltIn = { without: "those of the table" };

const languageServer = strictTable({
  command: key(
    program().optional(),
    "the program, which speaks the protocol over stdin and stdout. A program in a workspace is refused",
    ofBuiltIn,
  ),
  args: key(z.array(z.string()).default([]), "its arguments", ofBuiltIn),
  languages: key(
    z
      .record(z.string(), text())
      .refine((table) => Object.keys(table).every((extension) => /^\.[^./\s]+$/.test(extension)), {
        error: 'name each extension with its dot, such as { ".ts" = "typescript" }',
      })
      .optional(),
    "extension → ID of the language",
    ofBuiltIn,
  ),
  root_markers: key(
    z.array(z.string().regex(/^[^/]+$/, { error: "the name of a file, without a slash" })).optional(),
    "files that mark a project: the nearest directory above a file that holds one is its root, otherwise the workspace",
    ofBuiltIn,
  ),
  settings: key(z.record(text(), json).optional(), "the answer when the server asks for its configuration"),
  initialization_options: key(json.optional(), "sent when it starts"),
  env: key(variables(), "names of variables that it gets in addition to those of commands"),
  timeout_ms: key(z.int().min(1).max(600_000).optional(), "time in which it must answer", { without: "15,000" }),
  disabled: key(z.boolean().default(false), "the server is not used"),
});

/** Keys of the search tools, with the default of their time. */
const remoteSearch = (timeoutMs: number) => ({
  url: key(baseAddress.optional(), "its base address", { without: "that of the provider" }),
  key_file: key(path().optional(), "the file with its key"),
  key_env: key(text().optional(), "the environment variable with its key"),
  timeout_ms: key(z.int().min(1).max(120_000).default(timeoutMs), "time limit of a search"),
});

const limits = strictTable({
  request_bytes: key(bytes(67_108_864).default(4_194_304), "maximum size of a request"),
  input_bytes: key(bytes(67_108_864).default(524_288), "maximum size of the input of a call"),
  output_bytes: key(bytes(maxBytes).default(268_435_456), "maximum size of the output of a call"),
  timeout_ms: key(
    milliseconds(3_600_000).default(120_000),
    "run time of a tool, if neither the call nor the tool sets one",
  ),
  max_timeout_ms: key(milliseconds(day).default(3_600_000), "maximum run time of a tool"),
  open_asks: key(count().default(100), "open permission requests of a session tree"),
  long_asks: key(
    count().default(1_000),
    "open permission requests of all sessions that stay open for more than a day; further ones do for a day",
  ),
  running_calls: key(count().default(64), "open calls of a session, without delegated ones"),
  replica_running: key(
    count().default(() => Math.max(8 * availableParallelism(), 16)),
    "calls whose body runs at one replica; built-in tools that only read, delegated calls and calls that wait do not count. A call above it waits for its turn without a replica, and any replica with a free slot runs it",
    { without: "8 per core, at least 16" },
  ),
  report_ms: key(
    milliseconds(day).default(600_000),
    "time in which an agent must report a delegated call that it began",
    { see: "clients.md#agents-with-their-own-tools" },
  ),
  collect_ms: key(milliseconds(day).default(600_000), "time in which it must collect the approval of a delegated call"),
  task_depth: key(count(30, 0).default(1), "subagents below a root session, one under the other"),
  running_tasks: key(count().default(8), "tasks of a session tree that run at one replica"),
  runner_beat_ms: key(
    milliseconds(600_000, 1_000).default(10_000),
    "time between two messages of an agent runner or a worker, of which three may be missing",
    { see: "clients.md#agent-runners" },
  ),
  runner_resume_ms: key(
    milliseconds(600_000, 0).default(30_000),
    "time in which an agent runner may return after a lost connection",
  ),
  connections: key(count().default(1_024), "open connections in all"),
  connections_per_address: key(count().default(64), "open connections from one address, or one /64 network of IPv6"),
  connections_from_loopback: key(count().default(512), "open connections from loopback"),
  requests_without_token: key(count().default(16), "open requests without a valid token on one connection"),
  public_request_bytes: key(bytes(67_108_864).default(4_096), "size of a request to health or reflection"),
  body_ms: key(milliseconds(3_600_000).default(30_000), "time in which the body of a request must arrive"),
  buffered_bytes: key(
    bytes(maxBytes).default(268_435_456),
    "memory of all bodies that have not arrived yet, a quarter for one principal's open inputs",
  ),
}).superRefine(({ buffered_bytes, request_bytes, input_bytes, timeout_ms, max_timeout_ms }, context) => {
  const refuse = (message: string) => context.addIssue({ code: "custom", message });
  if (buffered_bytes < request_bytes)
    refuse(
      `buffered_bytes (${buffered_bytes}) must not be less than request_bytes (${request_bytes}), otherwise the largest request never fits; correct one of the two`,
    );
  if (timeout_ms > max_timeout_ms)
    refuse(`timeout_ms must not exceed max_timeout_ms (${max_timeout_ms}); correct one of the two`);
  if (input_bytes > request_bytes)
    refuse(`input_bytes must not exceed request_bytes (${request_bytes}); correct one of the two`);
});

/** All limits that are configured. */
export type Limits = CamelKeys<z.output<typeof limits>>;

/** Returns the limits with the written ones. */
export const readLimits = (written: z.input<typeof limits> = {}): Limits => camelKeys(limits.parse(written));

/**
 * All keys of `toolgate.toml`. A key stands here once: its type, default, flag, variable and meaning. A key that needs no further
 * reading is in `Config` under its name in camel case.
 */
export const configSchema = strictTable({
  listen: key(
    listen.prefault("127.0.0.1:7420"),
    "where to listen, with one port for all protocols; `:0` takes a free one",
    {
      flag: "--listen <host:port>",
      variable: "TOOLGATE_LISTEN",
    },
  ),
  health_listen: key(
    listen.optional(),
    "a second address, such as `0.0.0.0:7421`, in clear and for `/healthz` and `/readyz` alone: for probes where `tls_client_ca` wants certificates",
    { variable: "TOOLGATE_HEALTH_LISTEN" },
  ),
  data: key(path().optional(), "where store, outputs, tokens, log and quarantine lie; outside every workspace", {
    ...{ flag: "--data <dir>", variable: "TOOLGATE_DATA", see: "security.md#quarantine" },
    without: "`$XDG_DATA_HOME/toolgate`",
  }),
  store: key(
    z
      .string()
      .regex(/^(sqlite$|rediss?:\/\/|redis\+(unix|sentinel|cluster):\/\/)/, {
        error:
          'write "sqlite", or a URL that begins with redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://',
      })
      .default("sqlite"),
    "`sqlite`, or the address of the Redis that replicas share",
    { variable: "TOOLGATE_STORE", see: "configuration.md#redis" },
  ),
  store_strict: key(z.boolean().optional(), "acknowledge only what enough copies of Redis have", {
    ...{ without: "on where Redis has copies", see: "operations.md#redis-with-copies" },
  }),
  store_copies: key(
    count(100, 0).optional(),
    "copies of each master of Redis; a majority of them has to have what is acknowledged. A lower number than before counts from the next start of every replica",
    { without: "the most that were counted" },
  ),
  audit_days: key(count(3_650).optional(), "days for which the audit is retained; in Redis it takes memory", {
    without: "400 with SQLite, 90 with Redis",
  }),
  audit_max_days: key(
    count(7_300).optional(),
    "days after which a record of the audit is removed although `[audit_export.NAME]` has not exported it",
    { without: "30 more than `audit_days`" },
  ),
  store_min_free: key(
    z.int().min(1).max(maxBytes).optional(),
    "free space of the data directory below which new calls are refused",
    { unit: "bytes", without: "64 MiB, or 5 % of a smaller disk" },
  ),
  workspace: key(
    z.record(name(), path()).optional(),
    "where tools work; a session names `NAME` or `NAME/directory`. The flag names the workspace `default`",
    {
      ...{ flag: "--workspace <dir>", variable: "TOOLGATE_WORKSPACE", entry: "default" },
      without: "the current directory as `default`",
    },
  ),
  ...policyTables,
  preset,
  shadow: strictTable({
    file: key(path().optional(), "rules that are only tried", { see: "policy.md#tests" }),
  }).prefault({}),
  permission_test: z
    .array(
      strictTable({
        permission: key(text(), "a decision that the rules must lead to, otherwise the service does not start"),
        pattern: key(text(), "what is asked"),
        expect: key(z.enum(["allow", "ask", "deny"]), "the decision"),
        agent: key(name().optional(), "the agent that asks", { without: "`build`" }),
        contained: key(z.boolean().optional(), "whether the sandbox contains the command line", { without: "unknown" }),
        tool: key(text().optional(), "the tool that asks, for conditions", { without: "unknown" }),
        input: key(z.record(z.string(), z.json()).optional(), "its input, for conditions", { without: "unknown" }),
      }),
    )
    .default([]),
  sandbox: sandbox.prefault({}),
  token: z.array(token).default([]),
  jwt: z.array(jwt).default([]),
  client_cert: z.array(clientCert).default([]),
  oidc: z.record(name(), oidc).default({}),
  role_map: z.array(roleMap).default([]),
  group: z.record(name(), group).default({}),
  insecure_no_auth: key(
    z.boolean().default(false),
    "require no token: anyone on this machine, the agent included, can call and approve",
    { flag: "--insecure-no-auth", variable: "TOOLGATE_INSECURE_NO_AUTH" },
  ),
  require_other_user: key(
    z.boolean().default(false),
    "an answer from the same machine needs another user of the operating system than its call; `toolgate install` writes `true`",
    { see: "security.md#enforced-or-advisory" },
  ),
  tls_cert: key(path().optional(), "serve TLS: the certificate and its chain, PEM", {
    ...{ flag: "--tls-cert <file>", variable: "TOOLGATE_TLS_CERT", see: "configuration.md#tls" },
  }),
  tls_key: key(path().optional(), "its private key, PEM", {
    ...{ flag: "--tls-key <file>", variable: "TOOLGATE_TLS_KEY" },
  }),
  tls_client_ca: key(
    path().optional(),
    "require client certificates (as well as tokens) signed by this authority, PEM",
    { flag: "--tls-client-ca <file>", variable: "TOOLGATE_TLS_CLIENT_CA" },
  ),
  insecure_listen: key(
    z.boolean().default(false),
    "listen beyond this machine without TLS, for use behind a proxy that has it",
    { flag: "--allow-insecure-listen", variable: "TOOLGATE_INSECURE_LISTEN" },
  ),
  plain_always: key(
    z.enum(["narrowest", "tool"]).default("narrowest"),
    "what an answer *always* saves that names no offer, such as one of opencode's clients: the narrowest offer, or with `tool` the patterns that the tool suggests",
    { variable: "TOOLGATE_PLAIN_ALWAYS" },
  ),
  unattended: key(
    z.enum(["wait", "deny"]).default("wait"),
    "permission requests wait for a person, or are denied at once",
    { flag: "--unattended <policy>", variable: "TOOLGATE_UNATTENDED" },
  ),
  ask_ms: key(milliseconds(day).default(900_000), "how long a permission request stays open", {
    variable: "TOOLGATE_ASK_MS",
  }),
  lease_ms: key(milliseconds(600_000, 1_000).default(15_000), "lease of a replica on a call", {
    variable: "TOOLGATE_LEASE_MS",
  }),
  drain_ms: key(milliseconds(3_600_000, 0).default(30_000), "how long running calls may finish at a stop", {
    variable: "TOOLGATE_DRAIN_MS",
  }),
  mcp_hold_ms: key(
    milliseconds(day).default(50_000),
    "how long a call of an MCP client is held before its result says that it waits",
    { variable: "TOOLGATE_MCP_HOLD_MS", see: "agents/mcp.md#a-call-that-waits" },
  ),
  mcp_hold: z
    .record(
      text(),
      strictTable({
        ms: key(milliseconds(day).optional(), "the same by the name of the client", { without: "`mcp_hold_ms`" }),
        stdio_ms: key(milliseconds(day).optional(), "and over stdio", { without: "`ms`" }),
      }),
    )
    .default({}),
  rest: strictTable({
    enabled: key(z.boolean().default(false), "answer clients of opencode's HTTP API too", {
      flag: "--opencode",
      see: "clients/opencode.md",
    }),
  }).prefault({}),
  plugin: key(
    z.array(z.union([text(), strictTable({ path: text(), optional: z.boolean().optional() })])).default([]),
    "plugins: files, or packages installed beside this file; outside every workspace; `{ path, optional = true }` for one without which calls may run",
    { see: "tools.md#plugins" },
  ),
  workspace_plugins: key(
    z.record(name(), z.enum(["require", "optional", "off"])).default({}),
    "by workspace: what holds if a plugin that a trusted workspace brings is not loaded. `require`: its calls are denied; `optional`: they run; `off`: the workspace's plugins are ignored",
    { without: "`require`" },
  ),
  tools: strictTable({
    hosts: key(texts().default([]), "hosts that tool files and plugins reach", { see: "tools.md#tool-processes" }),
    local_ports: key(
      z.array(z.int().min(1).max(65_535)).max(20).default([]),
      "ports of this machine at `127.0.0.1` that they reach",
    ),
    env: key(variables(), "variables that they get"),
    bun: key(path().optional(), "the path of Bun", { without: "the one in PATH" }),
  }).prefault({}),
  websearch: strictTable({
    provider: key(z.enum(namesOf(webSearchProviders)), "provider of the tool, which is not offered without one", {
      see: "tools.md#search",
    }),
    ...remoteSearch(25_000),
  }).optional(),
  codesearch: strictTable({
    provider: key(z.enum(["ripgrep", ...namesOf(codeSearchProviders)]), "provider of the tool, as above"),
    ...remoteSearch(30_000),
    roots: key(z.array(path()).min(1).optional(), "the directories of the provider `ripgrep`"),
  }).optional(),
  lsp: z
    .object({
      diagnostics: key(z.boolean().default(false), "`edit` and `write` report new errors", { see: "code.md#servers" }),
    })
    .catchall(languageServer)
    .prefault({}),
  mcp: z.record(name(), upstream).default({}),
  agent_runner: z.record(name(), agentRunner).default({}),
  channel: z.record(name(), channel).default({}),
  notify: z.array(notify).default([]),
  audit_export: z.record(name(), auditExport).default({}),
  approval: z.array(approval).default([]),
  experimental: key(texts().default([]), "names of the experimental tools to offer"),
  public_url: key(
    origin
      .refine((written) => /^https?:/.test(written), { error: "the address starts with http:// or https://" })
      .optional(),
    "the address at which people reach the service, such as `https://gate.example`: links to requests begin with it, and its host is accepted",
    { without: "the address of each request", variable: "TOOLGATE_PUBLIC_URL" },
  ),
  hosts: key(texts().default([]), "further names that the service accepts in the Host header"),
  origins: key(z.array(origin).default([]), "web origins whose scripts may send requests"),
  trusted_proxies: key(
    z.array(network).default([]),
    'addresses or networks of proxies, such as `["10.0.0.0/24"]`: their connections count in total only',
  ),
  log_level: key(
    z.enum(["debug", "info", "warn", "error"]).default("info"),
    "what to log, as JSON lines to stderr and `<data>/log/toolgate.log`",
    { flag: "--log-level <level>", variable: "TOOLGATE_LOG_LEVEL" },
  ),
  log: strictTable({
    max_bytes: key(bytes(maxBytes).default(67_108_864), "size at which the log file is rotated"),
    max_age_hours: key(count(87_600).default(168), "age at which it is rotated"),
    max_files: key(count(1_000).default(4), "how many rotated files stay"),
  }).prefault({}),
  limits: limits.prefault({}),
});

/** The settings, with their defaults. */
export type Settings = z.output<typeof configSchema>;

/** The policy file of a workspace, which may contain nothing else. */
export const policySchema = strictTable(policyTables);

/** A policy that is tried on what was decided before. */
export const candidateSchema = strictTable({ ...policyTables, preset });

/** Its settings. */
export type PolicySettings = z.output<typeof policySchema>;

/** An option of `toolgate serve`. */
export interface ServeOption {
  /** Names and value, as commander reads them. */
  readonly flag: string;
  readonly help: string;
  readonly choices: readonly string[];
}

/** Options of `toolgate serve` that no file can set. */
const startOptions: readonly (KeyFacts & { readonly flag: string })[] = [
  {
    flag: "--config <file>",
    help: "the configuration",
    without: "$XDG_CONFIG_HOME/toolgate/toolgate.toml, if it exists",
  },
  {
    flag: "--new-store",
    help: "begin without records although the data directory has traces of a store that was lost",
  },
];

/** The options of `toolgate serve`. */
export const serveOptions: readonly ServeOption[] = [...keysOf(configSchema), ...startOptions].flatMap((option) => {
  const { flag, help } = option;
  if (flag === undefined) return [];
  const without = "schema" in option ? defaultOf(option) : option.without;
  const bare = "schema" in option ? withoutWrappers(option.schema) : undefined;
  return {
    ...{
      flag,
      help: without === undefined || without === "`false`" ? help : `${help} (default: ${without.replaceAll("`", "")})`,
    },
    choices: bare instanceof z.ZodEnum ? bare.options.map(String) : [],
  };
});

/** Returns the keys of a table as a tuple, as `z.enum` needs them. */
function namesOf<Name extends string>(table: Readonly<Record<Name, unknown>>): [Name, ...Name[]] {
  return Object.keys(table) as [Name, ...Name[]];
}
