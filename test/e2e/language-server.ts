/**
 * A language server for files `*.fake`, without dependencies: a service starts a copy of this file. A word is defined where
 * `def WORD` stands. What stands in the line of a hover or in the new name of a rename makes it misbehave.
 */
import { chmodSync, existsSync, fstatSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

interface Message {
  id?: number | string;
  method?: string;
  params?: Record<string, unknown>;
  result?: unknown;
  [key: string]: unknown;
}

interface Position {
  line: number;
  character: number;
}

const root = process.cwd();
const documents = new Map<string, { version: number; text: string }>();
const waiting = new Map<number | string, (message: Message) => void>();
const events: string[] = [];
let sent = 0;

function send(message: Message): void {
  const body = JSON.stringify({ jsonrpc: "2.0", ...message });
  process.stdout.write(`Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}

function ask(method: string, params: Record<string, unknown>): Promise<Message> {
  sent += 1;
  send({ id: `own-${sent}`, method, params });
  return new Promise((resolve) => waiting.set(`own-${sent}`, resolve));
}

let buffer = Buffer.alloc(0);
process.stdin.on("data", (chunk: Buffer) => {
  buffer = Buffer.concat([buffer, chunk]);
  for (;;) {
    const end = buffer.indexOf("\r\n\r\n");
    const length = Number(/Content-Length: (\d+)/i.exec(buffer.subarray(0, Math.max(end, 0)).toString())?.[1]);
    if (end === -1 || buffer.length < end + 4 + length) return;
    const message: Message = JSON.parse(buffer.subarray(end + 4, end + 4 + length).toString());
    buffer = buffer.subarray(end + 4 + length);
    void receive(message);
  }
});
process.stdin.on("end", () => process.exit(0));

async function receive(message: Message): Promise<void> {
  const { id, method, params = {} } = message;
  if (method === undefined) {
    if (id !== undefined) waiting.get(id)?.(message);
    return;
  }
  if (id === undefined) return notified(method, params);
  const answer = await answerTo(method, params).catch((error: Error) => ({
    error: { code: -32_803, message: error.message },
  }));
  if (answer !== "silence") send({ id, ...answer });
}

function notified(method: string, params: Record<string, unknown>): void {
  for (const { uri, type } of (params.changes ?? []) as { uri: string; type: number }[])
    events.push(`${["", "new", "changed", "gone"][type]} ${uri.slice(uri.lastIndexOf("/") + 1)}`);
  const document = params.textDocument as { uri: string; version: number; text: string } | undefined;
  if (method === "exit") process.exit(0);
  if (document === undefined) return;
  const { uri, version } = document;
  if (method === "textDocument/didOpen") documents.set(uri, { version, text: document.text });
  if (method === "textDocument/didClose") documents.delete(uri);
  if (method === "textDocument/didChange") {
    const [change] = params.contentChanges as { text: string }[];
    documents.set(uri, { version, text: change?.text ?? "" });
  }
  const text = documents.get(uri)?.text;
  if (text === undefined || method === "textDocument/didSave" || text.includes("!quiet")) return;
  // A late answer about an earlier version comes first.
  const late = text.includes("!late");
  const versions = late ? [version - 1] : [version - 1, version];
  for (const one of versions) {
    const about = one === version ? "now" : "before";
    const errors = text
      .split("\n")
      .flatMap((line, at) =>
        line.includes("bad")
          ? [{ range: rangeAt(at, line.indexOf("bad"), 3), severity: 1, source: "fake", message: `bad ${about}` }]
          : [],
      );
    send({ method: "textDocument/publishDiagnostics", params: { uri, version: one, diagnostics: errors } });
  }
}

const rangeAt = (line: number, character: number, length: number) => ({
  start: { line, character },
  end: { line, character: character + length },
});

type Answer = "silence" | { result: unknown } | { error: { code: number; message: string } };

async function answerTo(method: string, params: Record<string, unknown>): Promise<Answer> {
  const uri = (params.textDocument as { uri: string } | undefined)?.uri ?? "";
  const position = (params.position ?? { line: 0, character: 0 }) as Position;
  switch (method) {
    case "initialize":
      return introduce((params.initializationOptions as { behaviour?: string } | undefined)?.behaviour);
    case "textDocument/hover":
      return await hover(uri, position);
    case "textDocument/definition":
      return {
        result: uses(wordAt(uri, position))
          .filter(({ isDefinition }) => isDefinition)
          .map(locationOf),
      };
    case "textDocument/references":
      return { result: uses(wordAt(uri, position)).map(locationOf) };
    case "textDocument/documentSymbol":
      return { result: symbols(uri) };
    case "workspace/symbol":
      return {
        result: files()
          .flatMap(symbols)
          .filter(({ name }) => name.includes(String(params.query))),
      };
    case "textDocument/prepareRename":
      return {
        result:
          wordAt(uri, position) === ""
            ? null
            : { placeholder: wordAt(uri, position), range: rangeAt(position.line, 0, 1) },
      };
    case "textDocument/rename":
      return { result: rename(wordAt(uri, position), String(params.newName)) };
    case "textDocument/prepareCallHierarchy":
      return {
        result: uses(wordAt(uri, position))
          .filter(({ isDefinition }) => isDefinition)
          .map(itemOf),
      };
    case "callHierarchy/incomingCalls":
      return { result: [{ from: params.item, fromRanges: [] }] };
    case "textDocument/codeAction":
      return { result: actions(uri) };
    case "codeAction/resolve":
      if (params.data === undefined) return { result: params };
      return { result: { ...params, edit: edit([[String((params.data as { uri: string }).uri), "bad", "good"]]) } };
    default:
      return { result: null };
  }
}

const capabilities = {
  textDocumentSync: 1,
  hoverProvider: true,
  definitionProvider: true,
  referencesProvider: true,
  documentSymbolProvider: true,
  workspaceSymbolProvider: true,
  callHierarchyProvider: true,
  renameProvider: { prepareProvider: true },
  codeActionProvider: { resolveProvider: true },
};

function introduce(behaviour = ""): Answer {
  if (behaviour === "silent") return "silence";
  if (behaviour === "crash") process.exit(3);
  return { result: { capabilities: { ...capabilities, ...(behaviour !== "" && { positionEncoding: behaviour }) } } };
}

async function hover(uri: string, { line }: Position): Promise<Answer> {
  const document = documents.get(uri);
  const text = document?.text.split("\n")[line] ?? "";
  if (text.includes("!hang")) return "silence";
  if (text.includes("!crash")) {
    process.stderr.write("out of luck\n");
    process.exit(3);
  }
  if (text.includes("!flood")) for (;;) await flood();
  if (text.includes("!answers")) for (let id = 1_000_000; ; id += 500) await answers(id);
  if (text.includes("!closes")) {
    // The end of the pair of sockets, which others hold open.
    process.stdout.end();
    return "silence";
  }
  if (text.includes("!huge")) process.stdout.write("Content-Length: 900000000\r\n\r\n");
  if (text.includes("!huge")) for (;;) await write("x".repeat(1_048_576));
  if (text.includes("!edit")) return { result: { contents: await editsByItself(uri) } };
  if (text.includes("!events")) return { result: { contents: events.splice(0).sort().join(", ") } };
  if (text.includes("!outdated")) return { error: { code: -32_801, message: "content modified" } };
  if (text.includes("!nothing")) return { result: null };
  return { result: { contents: { kind: "markdown", value: `${text} (version ${document?.version}, \u202e)` } } };
}

async function flood(): Promise<void> {
  const body = JSON.stringify({ jsonrpc: "2.0", method: "window/logMessage", params: { type: 4, message: "and" } });
  await write(`Content-Length: ${body.length}\r\n\r\n${body}`.repeat(500));
}

/** Answers requests that nobody made. */
async function answers(first: number): Promise<void> {
  const bodies = Array.from({ length: 500 }, (_, n) => JSON.stringify({ jsonrpc: "2.0", id: first + n, result: 0 }));
  await write(bodies.map((body) => `Content-Length: ${body.length}\r\n\r\n${body}`).join(""));
}

const write = (text: string) => new Promise((resolve) => process.stdout.write(text, resolve));

/** Tries what a server must not do, and says what came of it. */
async function editsByItself(uri: string): Promise<string> {
  const applied = await ask("workspace/applyEdit", { edit: edit([[uri, "!edit", "edited"]]) });
  const written = attempt(() => writeFileSync(join(root, "written.txt"), "by the server"));
  const secret = attempt(() => readFileSync(join(root, ".env"), "utf8"));
  const setId = attempt(() => writeFileSync("/tmp/program", "")) && attempt(() => chmodSync("/tmp/program", 0o4755));
  const inherited = attempt(() => fstatSync(200).isDirectory());
  const reached = await new Promise((resolve) => {
    createConnection(Number(process.argv[2] ?? 1), "127.0.0.1")
      .on("connect", () => resolve("connected"))
      .on("error", (error: NodeJS.ErrnoException) => resolve(error.code));
  });
  return JSON.stringify({ applied: applied.result, written, secret, setId, inherited, reached });
}

function attempt(work: () => unknown): unknown {
  try {
    return work() ?? "done";
  } catch (error) {
    return (error as NodeJS.ErrnoException).code;
  }
}

function files(): string[] {
  return readdirSync(root, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".fake"))
    .sort()
    .map((name) => pathToFileURL(join(root, name)).href);
}

const textOf = (uri: string) =>
  documents.get(uri)?.text ?? (existsSync(fileURLToPath(uri)) ? readFileSync(fileURLToPath(uri), "utf8") : "");

function wordAt(uri: string, { line, character }: Position): string {
  const text = textOf(uri).split("\n")[line] ?? "";
  const match = [...text.matchAll(/\w+/g)].find(
    ({ index, 0: word }) => index <= character && character <= index + word.length,
  );
  return match?.[0] ?? "";
}

interface Use {
  uri: string;
  line: number;
  character: number;
  word: string;
  isDefinition: boolean;
}

function uses(word: string): Use[] {
  if (word === "") return [];
  return files().flatMap((uri) =>
    textOf(uri)
      .split("\n")
      .flatMap((text, line) =>
        [...text.matchAll(new RegExp(`\\b${word}\\b`, "g"))].map(({ index }) => ({
          ...{ uri, line, character: index, word },
          isDefinition: text.slice(0, index).endsWith("def "),
        })),
      ),
  );
}

const locationOf = ({ uri, line, character, word }: Use) => ({ uri, range: rangeAt(line, character, word.length) });

function itemOf(use: Use) {
  const { uri, range } = locationOf(use);
  return { name: use.word, kind: 12, uri, range, selectionRange: range };
}

function symbols(uri: string) {
  return textOf(uri)
    .split("\n")
    .flatMap((text, line) => {
      const name = /def (\w+)/.exec(text)?.[1];
      if (name === undefined) return [];
      return [{ name, kind: 12, location: { uri, range: rangeAt(line, text.indexOf(name), name.length) } }];
    });
}

/** Makes an edit that replaces texts; the version of an open document is named. */
function edit(changes: readonly (readonly [uri: string, from: string, to: string])[], offset = 0) {
  return {
    documentChanges: changes.map(([uri, from, to]) => {
      const version = documents.get(uri)?.version;
      const edits = uses(from)
        .filter((use) => use.uri === uri)
        .map((use) => ({ range: locationOf(use).range, newText: to }));
      return { textDocument: { uri, version: version === undefined ? null : version + offset }, edits };
    }),
  };
}

function rename(word: string, newName: string): unknown {
  const touched = [...new Set(uses(word).map(({ uri }) => uri))];
  // Computed from more than the files that it changes.
  const name = newName === "source" ? readFileSync(join(root, "source.txt"), "utf8") : newName;
  const changed = edit(
    touched.map((uri) => [uri, word, name]),
    newName === "old" ? -1 : 0,
  );
  const at = (name: string) => pathToFileURL(join(root, name)).href;
  if (newName === "outside") return { changes: { "file:///etc/passwd": [{ range: rangeAt(0, 0, 0), newText: "x" }] } };
  if (newName === "swapped") {
    const names = ["one", "spare", "two", "one", "spare", "two"].map((name) => at(`${name}.fake`));
    const renames = [0, 2, 4].map((i) => ({ kind: "rename", oldUri: names[i], newUri: names[i + 1] }));
    return { documentChanges: renames };
  }
  if (newName === "moved")
    return {
      documentChanges: [
        ...changed.documentChanges,
        { kind: "create", uri: at("created.fake") },
        {
          textDocument: { uri: at("created.fake"), version: null },
          edits: [{ range: rangeAt(0, 0, 0), newText: "new\n" }],
        },
        { kind: "rename", oldUri: at("old-name.fake"), newUri: at("new-name.fake") },
        { kind: "delete", uri: at("gone.fake") },
      ],
    };
  return changed;
}

function actions(uri: string): unknown[] {
  if (!textOf(uri).includes("bad")) return [];
  return [
    { title: "Make it good", kind: "quickfix", isPreferred: true, data: { uri } },
    { title: "Run a program", command: { title: "Run", command: "fake.run" } },
    { title: "Not here", kind: "refactor", disabled: { reason: "it is not possible" } },
  ];
}
