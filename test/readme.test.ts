import { execFile, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { Client, credentials, type ServiceDefinition, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { parse } from "smol-toml";
import { expect, onTestFinished, test } from "vitest";
import { ErrorReason } from "../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionReply, ToolErrorReason } from "../gen/opencode/tool/v1/tool_pb.ts";
import { agentFacts } from "../src/agents/hooks/agent-facts.ts";
import { declaredTools } from "../src/compose/built-in-tools.ts";
import { checkConfig } from "../src/config/check-config.ts";
import { parseRules } from "../src/policy/parse-rules.ts";
import { answerNext } from "./agents/connectors.ts";
import { machineRow } from "./agents/matrix.ts";
import { hostTokens } from "./e2e/host.ts";
import { startService } from "./e2e/service.ts";

const root = resolve(import.meta.dirname, "..");
const text = (file: string) => readFileSync(join(root, file), "utf8");
const blocks = (page: string, language: string) =>
  [...text(page).matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\``, "gm"))].map(([, code = ""]) => code);

test("the README has at most 1,500 words", () => {
  expect(text("README.md").split(/\s+/).length).toBeLessThanOrEqual(1_500);
});

test("the TypeScript client of docs/clients.md is examples/call.ts, which works", async () => {
  expect(blocks("docs/clients.md", "ts")[0]).toBe(text("examples/call.ts"));
  const service = await startService();
  const { stdout } = await promisify(execFile)(process.execPath, ["examples/call.ts"], {
    cwd: root,
    env: { ...process.env, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" },
  });
  expect(stdout).toBe("1 pending\n2 running\n3 completed\n");
});

/** A CheckRequest as the types of the Go module envoyproxy/go-control-plane encode it, with fields that are not used here. */
const recordedCheck = [
  "CsYCCjEKEAoOEggxMC4wLjAuNxjwkAMiGnNwaWZmZTovL2V4YW1wbGUuY29tL2FnZW50KgEtEi8KEAoOEggxMC4wLjAuNxjwkAMiG3NwaWZmZTovL2V4YW1w",
  "bGUuY29tL29yZGVycyLOAQoGCOCppMkGEsMBCiQ3YTNjNGMxZS0wZjhhLTRmNWQtOWE1ZS0yZjFmNGMzYjdkMjESBFBPU1QaIAoMY29udGVudC10eXBlEhBh",
  "cHBsaWNhdGlvbi9qc29uGjQKDHgtcmVxdWVzdC1pZBIkN2EzYzRjMWUtMGY4YS00ZjVkLTlhNWUtMmYxZjRjM2I3ZDIxIg0vb3JkZXJzP2RyeT0xKg9hcGku",
  "ZXhhbXBsZS5jb20yBWh0dHBzSApSCEhUVFAvMS4xWgp7Iml0ZW0iOjd9Ug8KBXJvdXRlEgZvcmRlcnM=",
].join("");

test("the program of docs/clients/envoy.md lets through what a rule or a person allows, once, and nothing else", async () => {
  const [rules = ""] = blocks("docs/clients/envoy.md", "toml");
  const service = await startService({ settings: `${hostTokens}${rules}` });
  const [, program = ""] = /node (\S+) 127/.exec(blocks("docs/clients/envoy.md", "sh")[0] ?? "") ?? [];
  const child = spawn(process.execPath, [join(root, program), "127.0.0.1:0"], {
    cwd: service.workspace,
    env: { ...process.env, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "host-token-for-tests" },
    stdio: ["ignore", "pipe", "inherit"],
  });
  onTestFinished(() => void child.kill());
  const [line] = await once(createInterface(child.stdout), "line");
  const client = new Client(/\S+$/.exec(line)?.[0] ?? "", credentials.createInsecure());
  onTestFinished(() => client.close());
  const { Check: method } = loadSync(join(root, "examples/envoy/external_auth.proto"), { defaults: true })[
    "envoy.service.auth.v3.Authorization"
  ] as ServiceDefinition;
  const send = (bytes: Buffer, deadline = Infinity) =>
    new Promise<{ status: { code: number }; deniedResponse: { status: { code: number }; body: string } }>(
      (resolve, reject) =>
        client.makeUnaryRequest(
          "/envoy.service.auth.v3.Authorization/Check",
          (message: Buffer) => message,
          (response) => method?.responseDeserialize(response),
          bytes,
          { deadline },
          // biome-ignore lint/suspicious/noExplicitAny: the proto is loaded at run time
          (error, response: any) => (error ? reject(error) : resolve(response)),
        ),
    );
  const requestOf = (http: object) => method?.requestSerialize({ attributes: { request: { http } } }) ?? Buffer.of();
  const api = { host: "api.example.com", id: "r1" };
  const allowed = { status: { code: status.OK }, okResponse: {} };
  const denied = { status: { code: status.PERMISSION_DENIED }, deniedResponse: { status: { code: 403 } } };

  const free = await send(requestOf({ ...api, method: "GET", path: "/public/a" }));
  expect(free).toMatchObject(allowed);

  const rejected = send(requestOf({ ...api, id: "r2", method: "GET", path: "/private" }));
  await answerNext(service, PermissionReply.REJECT, { message: "Use /public." });
  const refusal = await rejected;
  expect(refusal).toMatchObject(denied);
  expect(refusal.deniedResponse?.body).toContain("Use /public.");

  const recorded = Buffer.from(recordedCheck, "base64");
  const late = await send(recorded, Date.now() + 10_000);
  expect(late).toMatchObject(denied);
  const { id, patterns } = await answerNext(service, PermissionReply.ONCE);
  expect(patterns).toEqual(['{"url":"api.example.com/orders?dry=1","with":"{\\"item\\":7}"}']);
  expect(late.deniedResponse?.body).toContain(`${service.url}/r/${id}`);
  expect(await send(recorded)).toMatchObject(allowed);
  expect(await send(recorded)).toMatchObject(denied);

  await service.kill();
  const away = await send(requestOf({ ...api, id: "r3", method: "GET", path: "/public/a" }));
  expect(away).toMatchObject(denied);
  expect(away.deniedResponse?.body).toContain("Toolgate cannot be asked");
});

test("the rules in the README are rules", () => {
  const { permission, agent } = parse(blocks("README.md", "toml")[0] ?? "");
  expect(parseRules(permission, "permission", "/home/u")).toHaveLength(4);
  expect(agent).toEqual({ reviewer: { permission: { edit: "deny" } } });
});

test("docs/troubleshooting.md has every reason of a call's error and of a refused request", () => {
  const page = text("docs/troubleshooting.md");
  const [calls = "", requests = ""] = page.slice(page.indexOf("## A call ended")).split("## A request was refused");
  const names = (reasons: object) => Object.keys(reasons).filter((name) => name !== "UNSPECIFIED");
  const listed = (part: string) =>
    [...part.matchAll(/^\| ([A-Z_, ]+) \|/gm)].flatMap(([, reasons = ""]) => reasons.split(", "));
  expect(listed(calls).sort()).toEqual(names(ToolErrorReason).sort());
  expect(listed(requests).sort()).toEqual(names(ErrorReason).sort());
});

test("the policy in the README is one that a server starts with", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-readme-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const file = join(folder, "toolgate.toml");
  await writeFile(file, blocks("README.md", "toml")[0] ?? "");
  const checked = await checkConfig(file, { env: {}, home: folder, directory: folder }, await declaredTools());
  expect(checked).toMatchObject({ rules: 5, tests: 1, findings: [] });
});

test.each(["docs/policy.md", "docs/quickstart.md"])("the rules in %s are rules", (page) => {
  for (const code of blocks(page, "toml")) {
    const { permission = {} } = parse(code);
    expect(parseRules(permission, "permission", "/home/u")).toEqual(expect.any(Array));
  }
});

const pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"].concat(
  readdirSync(join(root, "docs"), { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".md"))
    .map((file) => `docs/${file}`),
);

// Pages that readers meet, generated references included. Tables of the bench and of tests are not pages: programs write them.
const counted = [...pages, "AGENTS.md", "SECURITY.md", "sdk/python/README.md", "sdk/go/README.md"];

/** The table that `npm run test:agents` writes. */
const measuredTable = /<!-- measured: .*?<!-- end -->/s;
/** The table that `npm run bench -- --goals --write` writes. */
const goalsTable = /<!-- bench:goals -->.*?<!-- \/bench:goals -->/s;

test("the measured table of agents and the code agree on what runs a tool, and on the versions", () => {
  const [table = ""] = measuredTable.exec(text("docs/agents/README.md")) ?? [];
  const lines = [...table.matchAll(/^\|(.*)\|$/gm)].map(([, line = ""]) => line.split("|").map((cell) => cell.trim()));
  const [[, ...heads] = [], , ...rows] = lines;
  expect(rows.length).toBeGreaterThanOrEqual(25);
  const kinds = Object.entries(agentFacts);
  expect(heads).toEqual(kinds.map(([, facts]) => `${facts?.name} ${facts?.version}`));
  const { packages } = JSON.parse(text("test/agents/programs/package-lock.json"));
  for (const [i, [kind, facts]] of kinds.entries()) {
    const { version = "", runsAfter = [], off = [], asksItself = false } = facts ?? {};
    const found = rows.filter((cells) => cells[i + 1] === "**runs**").map(([row]) => row);
    // Settings of the machine that no test measured leave a gap in this table.
    const ofMachine = facts?.machineSettings === undefined ? [] : off;
    const measured = rows.filter(([row, ...cells]) => row?.startsWith("hooks of the machine;") && cells[i] !== "–");
    expect(measured.map(([row]) => row).toSorted(), kind).toEqual(
      ofMachine.map(({ path }) => machineRow(path)).toSorted(),
    );
    const machine = off.filter(({ reachesMachine }) => reachesMachine).map(({ path }) => machineRow(path));
    const plugin = kind === "opencode" ? ["an accepted plugin changes what was approved"] : [];
    const settings = asksItself ? [] : off.map(({ path }) => `a project sets \`${path}\``);
    expect(found.toSorted(), kind).toEqual(
      [...runsAfter.map((fault) => `the hook ${fault}`), ...settings, ...machine, ...plugin].toSorted(),
    );
    const installed: string[] = Object.values<{ version?: string }>(packages).flatMap((each) => each.version ?? []);
    // The package of Claude Code counts its own versions, with the same last number.
    expect(
      installed.some((each) => each === version || each === version.replace(/^2\.1/, "0.3")),
      version,
    ).toBe(true);
  }
});

test("all pages together have at most 39,000 words", () => {
  const words = counted.map(
    (page) => text(page).replace(measuredTable, "").replace(goalsTable, "").split(/\s+/).length,
  );
  expect(words.reduce((sum, count) => sum + count, 0)).toBeLessThanOrEqual(39_000);
});

test("no table of the bench was measured before the last release", () => {
  const git = (...args: string[]) => execFileSync("git", args, { cwd: root, encoding: "utf8" }).trim();
  const head = git("rev-parse", "HEAD");
  // The commit that makes a release still has the tables of before it.
  const release = [...text("CHANGELOG.md").matchAll(/^## \d.*$/gm)]
    .map(([heading]) => git("log", "-1", "--format=%H", `-S${heading}`, "--", "CHANGELOG.md"))
    .find((commit) => commit !== "" && commit !== head);
  const tables = ["bench/results.md", "docs/internals/performance.md"].map(text).join("\n");
  const commits = [...tables.matchAll(/, (?:stored by )?commit ([0-9a-f]{7,40})/g)].map(([, commit = ""]) => commit);
  expect(commits.length).toBeGreaterThanOrEqual(15);
  // Throws on a commit that is not in the history either.
  const later = new Set(git("rev-list", `${release}..HEAD`).split("\n"));
  const isStale = (commit: string) => {
    const full = git("rev-parse", "--verify", `${commit}^{commit}`);
    return full !== release && !later.has(full);
  };
  expect([...new Set(commits)].filter(isStale)).toEqual([]);
});

test.each(pages)("the links of %s lead to files that exist", (page) => {
  const links = [...text(page).matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)].map(([, link = ""]) => link);
  const local = links.filter((link) => !/^https?:/.test(link));
  expect(local.filter((link) => !existsSync(join(root, dirname(page), link)))).toEqual([]);
});

test("each page is two clicks from the README; a decision is one file of a directory", () => {
  const linksOf = (page: string) =>
    [...text(page).matchAll(/\]\(([^)#\s:]+\.md)(?:#[^)]*)?\)/g)].map(([, link = ""]) => join(dirname(page), link));
  const near = new Set(linksOf("README.md"));
  for (const page of [...near]) for (const link of linksOf(page)) near.add(link);
  const far = pages.filter((page) => page !== "README.md" && !page.includes("/decisions/") && !near.has(page));
  expect(far).toEqual([]);
});

/** Anchors of a page, as GitHub makes them of headings. */
const anchorsOf = (page: string) =>
  [...text(page).matchAll(/^#+ (.*)$/gm)].map(([, heading = ""]) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N} _-]/gu, "")
      .replaceAll(" ", "-"),
  );

test.each(counted)("the anchors that %s links to exist", (page) => {
  const links = [...text(page).matchAll(/\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)/g)];
  const missing = links.filter(([, file = "", anchor = ""]) => {
    const target = file === "" ? page : join(dirname(page), file);
    return target.endsWith(".md") && !anchorsOf(target).includes(anchor);
  });
  expect(missing.map(([link]) => link)).toEqual([]);
});

test("docs/internals/architecture.md names files that exist", () => {
  const named = [...text("docs/internals/architecture.md").matchAll(/`([\w.-]+\/[\w./-]+)`/g)].map(
    ([, file = ""]) => file,
  );
  expect(named.length).toBeGreaterThan(30);
  expect(named.filter((file) => ![root, join(root, "src")].some((base) => existsSync(join(base, file))))).toEqual([]);
});

test("the npm scripts that the pages name exist", () => {
  const { scripts } = JSON.parse(text("package.json"));
  const named = pages.flatMap((page) =>
    [...text(page).matchAll(/npm (?:run (?:-s )?([\w:]+)|(start|test)\b)/g)].map(
      ([, script, short]) => script ?? short,
    ),
  );
  expect(new Set(named).size).toBeGreaterThan(8);
  expect(Object.keys(scripts)).toEqual(expect.arrayContaining(named));
});
