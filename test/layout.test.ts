import { readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { expect, test } from "vitest";
import { entries } from "../build/program.ts";
import { exportsOf, findCircles, importsOf, moduleState, readSource } from "./source.ts";
import { lintWords, wordProblems } from "./words.ts";

const root = resolve(import.meta.dirname, "..");

/**
 * Room or file of src → what its files may import of ours; gen and its own files always. A room inside another is separate: the name
 * of the outer one means only the files at its top.
 */
const allowed: Record<string, readonly string[]> = {
  "main.ts": ["cli", "compose"],
  "index.ts": ["compose", "config", "core", "tool"],
  compose: [
    "agents/connect",
    "agents/runners",
    "approval",
    "bodies",
    "bodies/processes",
    "bodies/skills",
    "bodies/workers",
    "call",
    "config",
    "core",
    "people",
    "edge",
    "policy",
    "reach",
    "sandbox",
    "sources",
    "store",
    "telemetry",
    "tool",
    "tools",
  ],
  config: ["core", "policy"],
  edge: [
    "agents/connect",
    "agents/hooks",
    "agents/mcp",
    "agents/runners",
    "approval",
    "bodies/fail-alone.ts",
    "bodies/workers",
    "call",
    "config",
    "core",
    "people",
    "reach/ports.ts",
    "tool/tool.ts",
    "view/json-form/convert.ts",
  ],
  telemetry: ["call/attention.ts", "call/observer.ts", "call/ports.ts", "call/ports", "core", "tool/tool.ts"],
  store: ["approval/ports.ts", "call/ports.ts", "call/ports", "core", "people", "reach/ports.ts"],
  call: ["approval", "config/schema.ts", "core", "policy", "reach/ports.ts", "tool"],
  reach: ["core", "policy/address.ts", "policy/wildcard.ts", "view/need.ts", "view/view-lines.ts"],
  approval: ["core", "policy", "reach/ports.ts", "view/need.ts", "view/view-lines.ts"],
  "agents/connect": ["agents/hooks/agent-facts.ts", "core", "people"],
  "agents/hooks": ["core"],
  "agents/mcp": [
    "client/resume-stream.ts",
    "core/bounded-map.ts",
    "core/json.ts",
    "core/pages-of.ts",
    "core/within.ts",
    "view",
  ],
  "agents/runners": ["core", "tool/errors.ts"],
  people: ["core", "policy/wildcard.ts"],
  policy: ["core"],
  "testing.ts": ["call", "core", "policy", "tool"],
  tools: ["agents/runners", "bodies/skills", "core", "sandbox", "sources/mcp/program-transport.ts", "tool"],
  sandbox: ["core", "policy"],
  tool: ["core", "policy/file-rules.ts"],
  sources: ["core", "tool"],
  bodies: ["core", "tool"],
  "bodies/processes": ["bodies", "core", "tool"],
  "bodies/program": ["bodies/sdk", "core", "tool"],
  "bodies/sdk": ["client", "core", "tool"],
  "bodies/skills": ["bodies/processes", "core", "tool"],
  "bodies/workers": ["bodies", "core", "policy/wildcard.ts", "tool"],
  core: [],
  view: ["core/command-failure.ts", "core/current-need.ts", "core/json.ts", "core/risk-words.ts", "core/visible.ts"],
  "ai-sdk": ["client"],
  client: ["core/pages-of.ts", "core/peer-uid.ts"],
  cli: [
    "agents/hooks",
    "agents/mcp",
    "client",
    "config/schema.ts",
    "core/assets.ts",
    "core/json.ts",
    "core/locate-program.ts",
    "core/passkey-receipt.ts",
    "core/pages-of.ts",
    "core/read-files.ts",
    "core/sha256.ts",
    "core/within.ts",
    "view",
  ],
  console: ["core/json.ts", "core/pages-of.ts", "core/signed-answer.ts", "view"],
};

/** Words by which a client would read the view of a request, which `viewLines` alone draws. */
const readsView =
  /\b(?:CallViewSchema|ViewLeaf|ViewFile|inputUrl|changedSinceRead)\w*\b|\b(?:ask|request|permission|first)\??\.view\b|\bview\b[^{}()]*\}\s*(?::|=)\s*(?:Pick<)?(?:PermissionRequest|ask|request|permission)\b/;

const files = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" }).filter((file) =>
  /\.tsx?$/.test(file),
);
const part = (file: string) => file.split("/", 1)[0] ?? file;
/** The innermost room of a file: `bodies/workers` for what is in there, `bodies` for the files at the top of it. */
const roomOf = (file: string) => {
  const inner = file.split("/", 2).join("/");
  return Object.hasOwn(allowed, inner) ? inner : part(file);
};

test.each(
  files.filter((file) => /^(?:cli|console|client|view|agents\/(?:hooks|mcp)|edge\/(?:rest|mcp|hooks))\//.test(file)),
)("src/%s leaves the view of a request to viewLines", (file) => {
  // The JSON form has every field of the contract.
  if (["view/view-lines.ts", "view/json-form/schemas.ts"].includes(file)) return;
  expect(readFileSync(join(root, "src", file), "utf8")).not.toMatch(readsView);
});

test.each(files)("src/%s imports only what its place allows", (file) => {
  const text = readFileSync(join(root, "src", file), "utf8");
  const imports = [...text.matchAll(/(?:from|import)\s*\(?\s*"(\.[^"]+)"/g)].map(([, path]) =>
    relative(join(root, "src"), resolve(root, "src", dirname(file), path ?? "")),
  );
  const wrong = imports.filter(
    (path) =>
      !path.startsWith("../gen/") &&
      path !== "../package.json" &&
      roomOf(path) !== roomOf(file) &&
      !(allowed[roomOf(file)] ?? []).some((place) =>
        Object.hasOwn(allowed, place) ? roomOf(path) === place : path === place || path.startsWith(`${place}/`),
      ),
  );
  expect(wrong).toEqual([]);
});

test("only config, clients of other programs, and what commands inherit, read the environment", () => {
  const reads = /process\.env|\benv\b[^;=]*= process;/;
  const readers = files.filter((file) => reads.test(readFileSync(join(root, "src", file), "utf8")));
  expect(readers.toSorted()).toEqual(["client/find-server.ts", "config/config.ts", "tools/process/confine-command.ts"]);
});

test("nothing of OpenTelemetry is loaded until it is asked for", () => {
  const loading = files.filter((file) => {
    const text = readFileSync(join(root, "src", file), "utf8");
    return /^import (?!type).*"(?:@opentelemetry\/|.*\/spans\.ts)/m.test(text.replaceAll(/\{[^}]*\}/g, "{}"));
  });
  expect(loading).toEqual(["telemetry/spans.ts"]);
});

test("only edge/rpc/errors.ts makes errors of the wire", () => {
  const makers = files.filter((file) => readFileSync(join(root, "src", file), "utf8").includes("new ConnectError("));
  expect(makers.filter((file) => !/^(cli|client)\//.test(file))).toEqual(["edge/rpc/errors.ts"]);
});

test("only keys.ts makes names of keys in Redis", () => {
  const folder = join(root, "src/store/redis");
  const stores = readdirSync(folder).filter((file) => file.endsWith(".ts"));
  expect(stores.filter((file) => readFileSync(join(folder, file), "utf8").includes("{${"))).toEqual(["keys.ts"]);
});

test("only call/state.ts makes states", () => {
  const makers = files.filter((file) =>
    /ToolState(Pending|Running|Completed|Error)Schema/.test(readFileSync(join(root, "src", file), "utf8")),
  );
  expect(makers.filter((file) => !file.startsWith("cli/"))).toEqual(["call/state.ts"]);
});

test("no folder is a drawer", () => {
  const folders = files.flatMap((file) => file.split("/").slice(0, -1));
  expect(folders.filter((folder) => ["utils", "types", "helpers", "common", "lib"].includes(folder))).toEqual([]);
});

/** One exported function for each step of a call's life, in order, and for its surroundings. */
const steps: readonly (readonly [step: string, file: string, name: string])[] = [
  ["accept", "call/accept.ts", "acceptCall"],
  ["attach", "call/accept.ts", "checkAttach"],
  ["make calls for a body", "call/accept.ts", "makeCalls"],
  ["launch", "call/launch.ts", "launchCall"],
  ["begin a delegated call", "call/begin.ts", "beginCall"],
  ["accept a delegated call", "call/begin.ts", "enterDelegated"],
  ["attempt to start a delegated call", "call/finish-delegated.ts", "attemptDelegated"],
  ["finish a delegated call", "call/finish-delegated.ts", "finishDelegated"],
  ["end a delegated call whose time is over", "call/finish-delegated.ts", "recoverDelegated"],
  ["run, step by step", "call/launch.ts", "runCall"],
  ["1 resolve", "call/prepare.ts", "resolveTool"],
  ["2 before hooks", "call/prepare.ts", "runBeforeHooks"],
  ["3 decode", "call/prepare.ts", "decodeInput"],
  ["4 plan", "call/decide.ts", "makePlan"],
  ["5 doom loop", "call/decide.ts", "askAboutLoop"],
  ["6 decide", "approval/judge-asks.ts", "judgeAsks"],
  ["6 open asks", "call/asks.ts", "openMissingAsks"],
  ["6 wait for the answers", "call/asks.ts", "waitUntilSettled"],
  ["4 to 7, until nothing has changed", "call/approve.ts", "approveCall"],
  ["7 start mark", "call/approve.ts", "writeStartMark"],
  ["8 execute", "call/body.ts", "executeBody"],
  ["8 ask from the body", "call/ask-in-body.ts", "askInBody"],
  ["9 encode", "tool/codec.ts", "outputCodec"],
  ["10 bound", "call/settle.ts", "boundOutput"],
  ["11 after hooks", "call/call-hooks.ts", "runAfterHooks"],
  ["11 settle", "call/settle.ts", "settleCall"],
  ["end without a result", "call/settle.ts", "failCall"],
  ["change of state", "call/state.ts", "advance"],
  ["renew leases", "call/leases.ts", "renewLeases"],
  ["recover orphans", "call/leases.ts", "recoverCalls"],
  ["claim", "call/claims.ts", "claimCall"],
  ["drain", "call/leases.ts", "drainCalls"],
  ["cancel", "call/cancel.ts", "cancelCall"],
  ["wait for the end", "call/follow.ts", "waitForEnd"],
  ["follow a call", "call/follow.ts", "callEvents"],
  ["watch a session", "call/follow.ts", "watchSession"],
  ["match a rule", "policy/opinion.ts", "matchRule"],
  ["settle an answer", "approval/permissions.ts", "settleAnswer"],
  ["bash", "tools/bash.ts", "createBash"],
  ["sign in, and find who a token is", "people/credentials.ts", "createCredentials"],
  ["open the doors", "edge/edge.ts", "startEdge"],
  ["compose a replica", "compose/replica.ts", "createReplica"],
  ["start the service", "compose/server.ts", "startServer"],
];

test.each(steps)("%s is %s %s", async (_step, file, name) => {
  const module: Record<string, unknown> = await import(join(root, "src", file));
  expect(module[name]).toBeTypeOf("function");
});

const src = join(root, "src");
const sources = files.map((file) => readSource(src, file));

test("files import each other in no circle", () => {
  const circles = findCircles(new Map(sources.map((source) => [source.file, importsOf(src, source)])));
  expect(circles.map((circle) => circle.join(" > "))).toEqual([]);
});

/**
 * Maximum number of lines of each room. One that is reached asks what can go before more comes; a feature that is worth it raises the
 * number in its commit, which says why.
 */
const maxLinesOf: Readonly<Record<string, number>> = {
  agents: 4_227,
  "ai-sdk": 310,
  approval: 2_601,
  bodies: 7_080,
  call: 12_229,
  cli: 12_150,
  client: 855,
  compose: 3_201,
  config: 3_792,
  console: 9_089,
  core: 1_941,
  edge: 8_040,
  people: 2_471,
  policy: 8_933,
  reach: 2_147,
  sandbox: 5_740,
  sources: 1_187,
  store: 11_113,
  telemetry: 1_080,
  tool: 2_692,
  tools: 11_580,
  view: 1_400,
};

const linesOf = (of: typeof sources) => of.reduce((sum, { text }) => sum + text.split("\n").length - 1, 0);

test("each room has at most its number of lines", () => {
  const rooms = Map.groupBy(
    sources.filter(({ file }) => file.includes("/")),
    ({ file }) => part(file),
  );
  const over = [...rooms].map(([room, of]) => [room, linesOf(of), maxLinesOf[room] ?? 0] as const);
  expect(over.filter(([, lines, max]) => lines > max)).toEqual([]);
  expect(Object.keys(maxLinesOf)).toEqual([...rooms.keys()].toSorted());
});

/** State of a file that no caller can observe, with the reason. */
const unobservable: Readonly<Record<string, string>> = {
  "tool/codec.ts metaSchemasByDraft": "follow from the drafts",
  "tool/define-tool.ts made": "holds what belongs to a tool, so that no copy passes for it",
};

test("no file has state: a value that is computed is passed", () => {
  // A program or thread owns its file.
  const programs = new Set(Object.values(entries));
  const state = sources
    .filter(({ file }) => !programs.has(`src/${file}`))
    .flatMap((source) => moduleState(source).map((name) => `${source.file} ${name}`));
  expect(state.toSorted()).toEqual(Object.keys(unobservable).toSorted());
});

test("an exported name is declared in one file", () => {
  const declaredIn = new Map<string, string[]>();
  for (const source of sources) {
    for (const name of exportsOf(source)) declaredIn.set(name, [...(declaredIn.get(name) ?? []), source.file]);
  }
  const homonyms = [...declaredIn].filter(([, places]) => places.length > 1).map(([name]) => name);
  expect(homonyms).toEqual([]);
});

test("files of one room have different names, apart from ports and the two stores", () => {
  const named = files
    .filter((file) => !/^store\/|\/ports\//.test(file))
    .map((file) => `${part(file)} ${basename(file)}`);
  expect(named.filter((name, i) => named.indexOf(name) !== i)).toEqual([]);
});

test("comments and texts keep to the words of the field", () => {
  expect(wordProblems(lintWords())).toEqual([]);
});
