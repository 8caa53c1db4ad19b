import { createHash } from "node:crypto";
import { once } from "node:events";
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { Worker } from "node:worker_threads";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { withKeyList } from "../../build/config-reference.ts";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Config, ConfigError, type Flags, loadConfig, tokenWarnings } from "../../src/config/config.ts";
import { type Certificates, makeCertificates, type Pair } from "../edge/certificates.ts";

describe("without any setting", () => {
  test("the defaults apply", () => {
    const { load, home, project } = machine();
    const config = load();
    expect(config).toMatchObject({
      file: join(home, ".config/toolgate/toolgate.toml"),
      dataDirectory: join(home, ".local/share/toolgate"),
      listen: { host: "127.0.0.1", port: 7420 },
      hosts: [],
      origins: [],
      trustedProxies: [],
      plugins: [],
      experimental: [],
      insecureNoAuth: false,
      requiresOtherUser: false,
      unattended: "wait",
      askMs: 900_000,
      leaseMs: 15_000,
      drainMs: 30_000,
      logLevel: "info",
      tracing: false,
      limits: {
        requestBytes: 4_194_304,
        inputBytes: 524_288,
        outputBytes: 268_435_456,
        timeoutMs: 120_000,
        maxTimeoutMs: 3_600_000,
        openAsks: 100,
        longAsks: 1_000,
        runningCalls: 64,
        reportMs: 600_000,
        collectMs: 600_000,
        taskDepth: 1,
        runningTasks: 8,
        runnerBeatMs: 10_000,
        runnerResumeMs: 30_000,
        connections: 1_024,
        connectionsPerAddress: 64,
        connectionsFromLoopback: 512,
        requestsWithoutToken: 16,
        publicRequestBytes: 4_096,
        bodyMs: 30_000,
        bufferedBytes: 268_435_456,
      },
    });
    expect([...config.workspaces]).toEqual([["default", project]]);
    expect([...config.policy.agents.keys()]).toEqual(["build", "plan", "explore"]);
    expect([config.policy.config.rules, config.policy.tests]).toEqual([[], []]);
    const confinement = { profile: "workspace-write", network: "proxy", unixSockets: false, ptrace: false };
    const sandbox = {
      ...confinement,
      agents: new Map(),
      required: false,
      requireAll: false,
      maxMemoryBytes: undefined,
      maxMasks: 100,
      hasBooleanNetwork: false,
    };
    expect(config.sandbox).toEqual({ ...sandbox, writable: [], readable: [], hidden: [] });
  });

  test("the data directory and the caller's token are created for this user alone, and read again", () => {
    const { load, home } = machine();
    const first = load();
    const data = join(home, ".local/share/toolgate");
    const mode = (path: string) => (statSync(path).mode & 0o777).toString(8);
    expect([mode(data), mode(join(data, "tokens"))]).toEqual(["700", "700"]);
    const file = join(data, "tokens/caller");
    const token = readFileSync(file, "utf8").trim();
    expect(mode(file)).toBe("600");
    expect(Buffer.from(token, "base64url")).toHaveLength(32);
    const rights = { roles: ["caller"], agents: ["*"], workspaces: ["*"] };
    expect(first).toMatchObject({
      tokens: [{ id: "caller", ...rights, sha256: sha256(token) }],
      callerTokenFile: file,
    });
    expect(readdirSync(join(data, "tokens"))).toEqual(["caller"]);
    expect(load().tokens).toEqual(first.tokens);
    // As a start on a full disk leaves it.
    writeFileSync(file, "");
    expect(load().tokens).toHaveLength(1);
    expect(readFileSync(file, "utf8").trim()).not.toBe(token);
  });

  test("two first starts at the same time have one caller token", async () => {
    const directory = mkdtempSync(join(tmpdir(), "toolgate-first-"));
    onTestFinished(() => rmSync(directory, { recursive: true }));
    const gate = new Int32Array(new SharedArrayBuffer(4 * 300));
    const started = [0, 1].map(async () => {
      const options = { workerData: { directory, gate, threads: 2 } };
      const [found] = await once(new Worker(join(import.meta.dirname, "first-start.ts"), options), "message");
      return found as string[];
    });
    const [one, other] = await Promise.all(started);
    expect(one).toEqual(other);
    expect(one?.every((hash) => /^[0-9a-f]{64}$/.test(hash))).toBe(true);
  });

  test("the loaded configuration is frozen", () => {
    const config = machine().load();
    expect(Object.isFrozen(config)).toBe(true);
    expect(Object.isFrozen(config.limits)).toBe(true);
    expect(Object.isFrozen(config.tokens[0]?.roles)).toBe(true);
  });
});

describe("a flag overrides the environment, which overrides the file, which overrides the default", () => {
  test("for the address", () => {
    const { load } = machine('listen = "127.0.0.1:1001"');
    expect(load().listen.port).toBe(1001);
    expect(load({}, { TOOLGATE_LISTEN: "127.0.0.1:1002" }).listen.port).toBe(1002);
    const both = load({ listen: "[::1]:0" }, { TOOLGATE_LISTEN: "127.0.0.1:1002" });
    expect(both.listen).toEqual({ host: "::1", port: 0 });
  });

  test("for the default workspace", () => {
    const { load, directory, project } = machine();
    const [one, two] = [directory("one"), directory("two")];
    expect(load().workspaces.get("default")).toBe(project);
    expect(load({}, { TOOLGATE_WORKSPACE: one }).workspaces.get("default")).toBe(one);
    expect(load({ workspace: two }, { TOOLGATE_WORKSPACE: one }).workspaces.get("default")).toBe(two);
  });

  test("also for numbers and switches of the environment", () => {
    const { load } = machine("ask_ms = 1000\nunattended = 'wait'");
    const config = load(
      {},
      { TOOLGATE_ASK_MS: "2000", TOOLGATE_UNATTENDED: "deny", TOOLGATE_INSECURE_NO_AUTH: "true" },
    );
    expect(config).toMatchObject({ askMs: 2000, unattended: "deny", insecureNoAuth: true, tokens: [] });
  });
});

describe("the file", () => {
  test("names workspaces, relative to itself; the current directory is then not a workspace", () => {
    const { load, home, directory } = machine('[workspace]\nshop = "shop"\nhome_shop = "~/shop"');
    mkdirSync(join(home, ".config/toolgate/shop"));
    mkdirSync(join(home, "shop"));
    const other = directory("other");
    expect([...load().workspaces]).toEqual([
      ["shop", join(home, ".config/toolgate/shop")],
      ["home_shop", join(home, "shop")],
    ]);
    expect(load({ workspace: other }).workspaces.get("default")).toBe(other);
  });

  test("keeps rules in the order in which they were written", () => {
    const { load } = machine(`
      [permission]
      webfetch = "deny"
      "*" = "ask"
      [permission.bash]
      "rm *" = "deny"
      "git *" = "allow"
      [agent.reviewer]
      description = "only looks"
      [agent.reviewer.permission]
      edit = "deny"`);
    const config = load();
    const { rules, lineOf } = config.policy.config;
    expect(rules.map(({ permission, pattern }, i) => [permission, pattern, lineOf(i)])).toEqual([
      ["webfetch", "*", 3],
      ["*", "*", 4],
      ["bash", "rm *", 6],
      ["bash", "git *", 7],
    ]);
    expect([...config.policy.agents.keys()]).toEqual(["build", "plan", "explore", "reviewer"]);
    expect(config.policy.agents.get("reviewer")).toMatchObject({
      description: "only looks",
      rules: [{ permission: "edit", pattern: "*", action: PermissionAction.DENY }],
    });
  });

  test("confines commands, with another profile for one agent, and hides the operator's files from them", () => {
    const { load, home } = machine(`
      [sandbox]
      profile = "read-only"
      writable = ["~/cache"]
      readable = ["~/.ssh", "sets"]
      masks_max = 7
      memory_max = 1_073_741_824
      [sandbox.agent.plan]
      network = "none"
      ptrace = true
      [[token]]
      id = "host"
      roles = ["caller"]
      file = "host.token"`);
    const own = join(home, ".config/toolgate");
    writeFileSync(join(own, "host.token"), "a".repeat(20));
    const { sandbox } = load();
    const hidden = [join(own, "toolgate.toml"), join(own, "host.token")];
    const writable = [join(home, "cache")];
    const switches = { unixSockets: false, ptrace: false };
    const agents = new Map([["plan", { profile: "read-only", network: "none", ...switches, ptrace: true }]]);
    expect(sandbox).toEqual({
      profile: "read-only",
      network: "proxy",
      ...switches,
      agents,
      required: true,
      requireAll: false,
      maxMemoryBytes: 1_073_741_824,
      maxMasks: 7,
      hasBooleanNetwork: false,
      writable,
      readable: [join(home, ".ssh"), join(own, "sets")],
      hidden,
    });
  });

  test("hides each file with a secret from commands", () => {
    const { load, home } = machine(`
      public_url = "https://gate.example"
      [oidc.corp]
      issuer = "https://id.example"
      client_id = "a"
      client_secret_file = "client"
      [[role_map]]
      issuer = "corp"
      group = "all"
      roles = ["approver"]
      [channel.ops]
      kind = "webhook"
      url = "https://a.example"
      secret_file = "channel"
      [audit_export.siem]
      url = "https://b.example"
      secret_file = "export"
      [websearch]
      provider = "exa"
      key_file = "web"
      [codesearch]
      provider = "sourcegraph"
      key_file = "code"`);
    const own = join(home, ".config/toolgate");
    const secrets = ["web", "code", "client", "channel", "export"];
    for (const name of secrets) writeFileSync(join(own, name), `whsec_${"a".repeat(32)}`);
    expect(load().sandbox.hidden).toEqual(["toolgate.toml", ...secrets].map((name) => join(own, name)));
  });

  test("requires a sandbox if it says so, also with the default profile", () => {
    expect(machine("[sandbox]\nrequire = true").load().sandbox).toMatchObject({ required: true, requireAll: true });
  });

  test("gives tokens by value, by file, by environment and by hash", () => {
    const { load, home } = machine(`
      [[token]]
      id = "host"
      roles = ["caller"]
      agents = ["build"]
      workspaces = ["default"]
      value = "aaaaaaaaaaaaaaaaaaaa"
      [[token]]
      id = "anna"
      roles = ["approver", "watcher"]
      file = "anna.token"
      [[token]]
      id = "ops"
      roles = ["admin"]
      env = "OPS_TOKEN"
      [[token]]
      id = "hook"
      roles = ["host"]
      sha256 = "${sha256("ddd")}"
      [[token]]
      id = "ci"
      roles = ["worker"]
      tools = ["ci_*"]
      permissions = ["deploy_*"]
      sha256 = "${sha256("eee")}"`);
    writeFileSync(join(home, ".config/toolgate/anna.token"), `${"b".repeat(20)}\n`);
    expect(load({}, { OPS_TOKEN: "c".repeat(20) }).tokens).toEqual([
      {
        ...{
          id: "host",
          roles: ["caller"],
          agents: ["build"],
          workspaces: ["default"],
          sha256: sha256("a".repeat(20)),
        },
        source: join(home, ".config/toolgate/toolgate.toml"),
      },
      {
        ...{ id: "anna", roles: ["approver", "watcher"], agents: ["*"], workspaces: ["*"] },
        ...{ sha256: sha256("b".repeat(20)), source: join(home, ".config/toolgate/anna.token") },
      },
      { id: "ops", roles: ["admin"], agents: ["*"], workspaces: ["*"], sha256: sha256("c".repeat(20)) },
      { id: "hook", roles: ["host"], agents: ["*"], workspaces: ["*"], sha256: sha256("ddd") },
      {
        ...{ id: "ci", roles: ["worker"], agents: ["*"], workspaces: ["*"], sha256: sha256("eee") },
        worker: { tools: ["ci_*"], permissions: ["deploy_*"], calls: [], idempotent: false, pin: [] },
      },
    ]);
  });

  test("that every user can read is named with its token that can approve", () => {
    const folder = mkdtempSync(join(tmpdir(), "toolgate-open-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const source = join(folder, "anna.token");
    const token = { id: "anna", agents: ["*"], workspaces: ["*"], sha256: sha256("b"), source };
    const messages = (role: "approver" | "caller") =>
      tokenWarnings([{ ...token, roles: [role] }]).map(({ message }) => message);
    writeFileSync(source, "b", { mode: 0o644 });
    expect(messages("approver")).toEqual([]);
    chmodSync(folder, 0o755);
    expect(messages("approver")).toEqual([expect.stringContaining(`every user of this machine can read ${source}`)]);
    expect(messages("caller")).toEqual([]);
    chmodSync(source, 0o640);
    expect(messages("approver")).toEqual([]);
  });

  test.each([
    ['roles = ["worker"]', "needs the names of the tools"],
    ['roles = ["worker", "caller"]\ntools = ["ci"]', "the role worker excludes caller"],
    ['roles = ["caller"]\ntools = ["ci"]', "only for the role worker"],
    ['roles = ["worker"]\ntools = ["ci"]\npin = ["latest"]', "32 hex digits"],
  ])("refuses the token %s", (rights, problem) => {
    expect(machine(`[[token]]\nid = "ci"\n${rights}\nsha256 = "${sha256("eee")}"`).load).toThrow(problem);
  });

  test("is read from the path of --config, which must exist", () => {
    const { load, home } = machine("ask_ms = 1000");
    const file = join(home, "other.toml");
    expect(() => load({ config: file })).toThrow(`${file} does not exist; create it`);
    writeFileSync(file, "ask_ms = 3000");
    expect(load({ config: file }).askMs).toBe(3000);
  });
});

describe("a start is refused, and the message says what to do", () => {
  const refusals: [what: string, file: string, flags: Flags, env: Record<string, string>, message: string | RegExp][] =
    [
      ["an unknown key", "lisen = 1", {}, {}, 'top level: unknown key "lisen", the nearest known one is "listen"'],
      ["an unknown key in a table", "[limits]\nask_ms = 1", {}, {}, 'limits: unknown key "ask_ms"'],
      [
        "an unknown key of a token",
        "[[token]]\nrole = []",
        {},
        {},
        'token.0: unknown key "role", the nearest known one is "roles"',
      ],
      ["a value of the wrong kind", 'ask_ms = "15m"', {}, {}, /ask_ms: .*number/],
      ["an ask over a day", "ask_ms = 86400001", {}, {}, /ask_ms: .*86400000/],
      [
        "a wrong variable",
        "",
        {},
        { TOOLGATE_ASK_MS: "soon" },
        /the environment cannot be used.*\n.*TOOLGATE_ASK_MS: /,
      ],
      [
        "spans over an unsupported protocol",
        "",
        {},
        { OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4317", OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" },
        'OTLP protocol "grpc", but only http/protobuf is supported',
      ],
      ["a wrong flag", "", { unattended: "maybe" }, {}, /the command line cannot be used.*\n.*--unattended: /],
      ["an address without a port", "", { listen: "localhost" }, {}, "--listen: write it as HOST:PORT"],
      ["a port that is too high", "", { listen: "localhost:70000" }, {}, "choose one from 0"],
      ["listening on the network without encryption", 'listen = "0.0.0.0:7420"', {}, {}, "--allow-insecure-listen"],
      [
        "listening to the network without tokens",
        'listen = "0.0.0.0:7420"',
        { insecureNoAuth: true, allowInsecureListen: true },
        {},
        "listen on 127.0.0.1 or use tokens",
      ],
      [
        "an origin with a path",
        'origins = ["https://a.example/x"]',
        {},
        {},
        "origins.0: an origin is scheme, host and port",
      ],
      ["a public address with a path", 'public_url = "https://a.example/x"', {}, {}, "public_url: an origin is scheme"],
      ["no web address", 'public_url = "ftp://a.example"', {}, {}, "public_url: the address starts with http"],
      ["an origin for all", 'origins = ["*"]', {}, {}, "origins.0: an origin is scheme, host and port"],
      [
        "a token without a source",
        '[[token]]\nid = "a"\nroles = ["caller"]',
        {},
        {},
        "exactly one of value, file, env and sha256",
      ],
      [
        "a token whose variable is not set",
        '[[token]]\nid = "a"\nroles = ["caller"]\nenv = "NOPE"',
        {},
        {},
        "NOPE is not set",
      ],
      [
        "a token that can be guessed",
        '[[token]]\nid = "a"\nroles = ["caller"]\nvalue = "nineteen-characters"',
        {},
        {},
        'token "a" has 19 characters',
      ],
      [
        "a hash that is none",
        '[[token]]\nid = "a"\nroles = ["caller"]\nsha256 = "abc"',
        {},
        {},
        "token.0.sha256: write the 64 hex digits",
      ],
      [
        "a token for an unknown workspace",
        '[[token]]\nid = "a"\nroles = ["caller"]\nworkspaces = ["other"]\nvalue = "x"',
        {},
        {},
        'token "a": workspace "other" is not configured',
      ],
      [
        "workspaces of a role that they do not limit",
        '[[token]]\nid = "a"\nroles = ["caller", "approver"]\nworkspaces = ["default"]\nvalue = "x"',
        {},
        {},
        "workspaces do not limit the role approver",
      ],
      ["an empty token", '[[token]]\nid = "a"\nroles = ["caller"]\nvalue = ""', {}, {}, 'token "a" is empty'],
      [
        "two tokens of one id",
        '[[token]]\nid = "a"\nroles = ["caller"]\nvalue = "xxxxxxxxxxxxxxxxxxxxxxxx"\n[[token]]\nid = "a"\nroles = ["admin"]\nvalue = "yyyyyyyyyyyyyyyyyyyyyyyy"',
        {},
        {},
        'tokens "a" and "a" have the same id',
      ],
      [
        "two tokens of one value",
        '[[token]]\nid = "a"\nroles = ["caller"]\nvalue = "xxxxxxxxxxxxxxxxxxxxxxxx"\n[[token]]\nid = "b"\nroles = ["admin"]\nvalue = "xxxxxxxxxxxxxxxxxxxxxxxx"',
        {},
        {},
        'tokens "a" and "b" have the same value',
      ],
      [
        "a rule that would lose its place",
        '[permission.webfetch]\n"a*" = "ask"\n80 = "deny"',
        {},
        {},
        "permission.webfetch.80: ",
      ],
      [
        "a workspace that is not there",
        '[workspace]\nshop = "/no/such/shop"',
        {},
        {},
        'workspace "shop" is /no/such/shop',
      ],
      [
        "limits that contradict each other",
        "[limits]\ntimeout_ms = 5000\nmax_timeout_ms = 4000",
        {},
        {},
        "timeout_ms must not exceed",
      ],
    ];
  for (const [what, file, flags, env, message] of refusals) {
    test(what, () => {
      const { load } = machine(file);
      expect(() => load(flags, env)).toThrow(ConfigError);
      expect(() => load(flags, env)).toThrow(message);
    });
  }

  test("an error lists all problems at once, each with its line", () => {
    const { load } = machine('ask_ms = "15m"\n[limits]\nopen_asks = 1\nopn = 2\n[permission.bash]\n"ls *" = "alow"');
    for (const problem of [
      "line 1: ask_ms: ",
      'line 4: limits: unknown key "opn"',
      "line 6: permission.bash.ls *: must be",
    ])
      expect(() => load()).toThrow(problem);
  });

  test("an error names the position of text that is not TOML, and does not quote it, since it may contain a token", () => {
    const { load } = machine('[[token]]\nvalue = "s3cret" "\n');
    expect(() => load()).toThrow(/toolgate\.toml, line 2, column \d+: /);
    expect(() => load()).not.toThrow(/s3cret/);
  });

  test("data inside a workspace", () => {
    const { load, project } = machine();
    expect(() => load({ data: join(project, "data") })).toThrow(
      /data directory .* lies inside the workspace "default"/,
    );
    expect(() => statSync(join(project, "data"))).toThrow("ENOENT");
  });

  test("data inside a workspace, by a symlink", () => {
    const { load, home, project } = machine();
    mkdirSync(join(project, "inside"));
    symlinkSync(join(project, "inside"), join(home, "link"));
    expect(() => load({ data: join(home, "link", "data") })).toThrow('lies inside the workspace "default"');
  });

  test("a workspace inside the data directory", () => {
    const { load, home } = machine();
    mkdirSync(join(home, "data", "work"), { recursive: true });
    expect(() => load({ data: join(home, "data"), workspace: join(home, "data", "work") })).toThrow(
      /workspace "default" .* lies inside the data directory/,
    );
  });

  test("the home directory as workspace, which contains the default data directory", () => {
    const { load, home } = machine();
    expect(() => load({ workspace: home })).toThrow("name the project's own directory: toolgate serve --workspace DIR");
  });

  test("a configuration file inside a workspace, itself or by a link on either side", () => {
    const { load, home, project } = machine();
    writeFileSync(join(project, "toolgate.toml"), "");
    expect(() => load({ config: join(project, "toolgate.toml") })).toThrow("move it out of the workspace");
    symlinkSync(join(project, "toolgate.toml"), join(home, "outside.toml"));
    expect(() => load({ config: join(home, "outside.toml") })).toThrow("move it out of the workspace");
    writeFileSync(join(home, "real.toml"), "");
    symlinkSync(join(home, "real.toml"), join(project, "inside.toml"));
    expect(() => load({ config: join(project, "inside.toml") })).toThrow("move it out of the workspace");
  });

  test("a token file inside a workspace", () => {
    const { load, project } = machine(
      '[[token]]\nid = "a"\nroles = ["caller"]\nfile = "/tmp/placeholder"',
      (text, project) => text.replace("/tmp/placeholder", join(project, "token")),
    );
    writeFileSync(join(project, "token"), "abc");
    expect(() => load()).toThrow(/the file of token "a" .* lies inside the workspace/);
  });
});

describe("TLS", () => {
  let made: Certificates;
  beforeAll(async () => {
    made = await makeCertificates();
  });
  afterAll(() => made.remove());
  const pair = ({ certFile, keyFile }: Pair = made.server) => ({ tlsCert: certFile, tlsKey: keyFile });

  test("is off unless it is configured, and read from flags, environment or the file, each with its own directory", () => {
    const { load, home, project } = machine('tls_cert = "tls/server.pem"\ntls_key = "~/server.key"');
    const { cert, key } = made.server;
    mkdirSync(join(home, ".config/toolgate/tls"));
    writeFileSync(join(home, ".config/toolgate/tls/server.pem"), cert);
    writeFileSync(join(home, "server.key"), key);
    expect(load().tls).toEqual({ cert, key, clientCa: undefined });
    const variables = { TOOLGATE_TLS_CERT: made.client.certFile, TOOLGATE_TLS_KEY: made.client.keyFile };
    expect(load({}, variables).tls).toMatchObject({ cert: made.client.cert, key: made.client.key });
    const clientCa = relative(project, made.ca.certFile);
    expect(load({ ...pair(), tlsClientCa: clientCa }, variables).tls).toEqual({ cert, key, clientCa: made.ca.cert });
    expect(machine().load().tls).toBeUndefined();
  });

  test("lets it listen beyond loopback, but never without tokens", () => {
    const { load } = machine();
    const listen = "0.0.0.0:7420";
    expect(() => load({ listen })).toThrow("give a certificate with --tls-cert and --tls-key");
    expect(load({ listen, ...pair() }).listen.host).toBe("0.0.0.0");
    expect(() => load({ listen, ...pair(), insecureNoAuth: true })).toThrow("use tokens");
  });

  test("is refused if incomplete, and the message names the missing setting", () => {
    const { load } = machine();
    expect(() => load({ tlsCert: made.server.certFile })).toThrow("tls_key is not set");
    expect(() => load({ tlsKey: made.server.keyFile })).toThrow("tls_cert is not set");
    expect(() => load({ tlsClientCa: made.ca.certFile })).toThrow("tls_cert is not set");
  });

  test("is refused with invalid files, and the message names them", () => {
    const { load, home } = machine();
    const twisted = { tlsCert: made.server.certFile, tlsKey: made.client.keyFile };
    expect(() => load(twisted)).toThrow(/server\.pem and tls_key .*client\.key cannot be used together \(.*mismatch\)/);
    expect(() => load({ ...pair(), tlsKey: join(home, "none") })).toThrow(
      `tls_key ${join(home, "none")} cannot be read`,
    );
    expect(() => load({ ...pair(), tlsClientCa: made.ca.keyFile })).toThrow(/tls_client_ca .* is not a certificate/);
    expect(() => load({ ...pair(), tlsCert: made.server.keyFile })).toThrow(ConfigError);
  });

  test("is refused with a file in a workspace, where tools could read or change it", () => {
    const { load, project } = machine();
    for (const flag of ["tlsCert", "tlsKey", "tlsClientCa"]) {
      const file = join(project, "server.pem");
      writeFileSync(file, made.server.cert);
      expect(() => load({ ...pair(), [flag]: file })).toThrow(`${file} lies inside the workspace "default"`);
    }
  });
});

test.each<[boolean, Record<string, string>]>([
  [false, {}],
  [true, { OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4318" }],
  [true, { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://localhost:4318/v1/traces" }],
  [true, { OTEL_TRACES_EXPORTER: "otlp" }],
  [true, { OTEL_TRACES_EXPORTER: "otlp,console", OTEL_EXPORTER_OTLP_PROTOCOL: "http/protobuf" }],
  [false, { OTEL_TRACES_EXPORTER: "none", OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4318" }],
  [false, { OTEL_TRACES_EXPORTER: "none", OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" }],
  [false, { OTEL_SDK_DISABLED: "true", OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4318" }],
])("spans are exported: %s, with %o", (tracing, env) => {
  expect(machine().load({}, env).tracing).toBe(tracing);
});

test("a flag that does not exist is refused with the nearest one", () => {
  expect(() => machine().load({ lisen: "127.0.0.1:0" })).toThrow(
    'unknown key "lisen", the nearest known one is "listen"',
  );
});

test.each(["configuration.md", "mcp-servers.md", "code.md"])("docs/%s has the keys of the schema", (page) => {
  const text = readFileSync(join(import.meta.dirname, "../../docs", page), "utf8");
  expect(text).toContain("<!-- keys: ");
  expect(text).toMatch(/^\* `command`|^\* `listen`/m);
  expect(withKeyList(page, text)).toBe(text);
});

/** A home, a project directory and, if there is text for it, a configuration file; all are removed when the test ends. */
function machine(toml?: string, change: (text: string, project: string) => string = (text) => text) {
  const base = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-config-")));
  onTestFinished(() => rmSync(base, { recursive: true }));
  const directory = (name: string): string => {
    mkdirSync(join(base, name));
    return join(base, name);
  };
  const home = directory("home");
  const project = directory("project");
  if (toml !== undefined) {
    mkdirSync(join(home, ".config/toolgate"), { recursive: true });
    writeFileSync(join(home, ".config/toolgate/toolgate.toml"), change(toml, project));
  }
  const load = (flags: Flags = {}, env: Record<string, string> = {}): Config =>
    loadConfig(flags, { env, home, directory: project });
  return { load, home, project, directory };
}

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
