import type { Client } from "@connectrpc/connect";
import { type PermissionRequest, type ViewFile, ViewFileUse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { jsonLeaves } from "../core/json.ts";
import { visible, visibleLine } from "../core/visible.ts";
import { countOf, sizeOf } from "./quantities.ts";
import { readWhole } from "./read-output.ts";

/** A part of a call as every client shows it. Its texts are escaped; only `text` may have several lines. */
export interface ViewLine {
  kind: "tool" | "input" | "file" | "note" | "missing";
  name: string;
  text: string;
  /** Description of what `text` leaves out; empty if it is whole. */
  cut: string;
  /** Size of a whole value of the input. */
  bytes?: number;
  /** The whole SHA-256 of a file, which clients show shortened until it is wanted, or whole. */
  hash?: string;
  /** The file whose text belongs to the line, for ReadBoundFile; absent if it has none. */
  path?: string;
}

/**
 * Draws the view of a permission request: the tool, every value of the input, where it goes, the files that run, and what is missing. This is the
 * only reader of the view, so that no client adds or drops a part of it. What the form of a question shows is left to it.
 */
export function viewLines({ view, question }: Pick<PermissionRequest, "view" | "question">): ViewLine[] {
  if (!view) return [];
  const { tool, title, input, files, missing, targets } = view;
  const isRepeated = title === "" || title === tool || input.some(({ text }) => text === title);
  const values = question.length > 0 ? input.filter(({ path }) => !formed.test(path)) : input;
  return [
    { kind: "tool", name: "tool", text: isRepeated ? tool : `${tool}: ${title}`, cut: "" },
    ...values.map(({ path, text, bytes, sha256 }): ViewLine => {
      const isWhole = sha256 === "";
      const name = path === "" ? (isWhole ? "input" : "all input") : path.replace(/^\//, "");
      const cut = isWhole ? "" : `only the beginning of ${sizeOf(Number(bytes))}, SHA-256 ${sha256}`;
      return { kind: "input", name, text: text === "" ? '""' : text, cut, bytes: Number(bytes) };
    }),
    ...targets.map((text): ViewLine => ({ kind: "note", name: "goes to", text, cut: "" })),
    ...files.map((file): ViewLine => {
      const line = { kind: "file", name: useWords(file), text: fileWords(file), cut: "", hash: file.sha256 } as const;
      return file.lines > 0 ? { ...line, path: file.path } : line;
    }),
    ...missing.map((text): ViewLine => {
      // The new text is a value of the input.
      const kind = text.startsWith("the present text of ") ? "note" : "missing";
      return { kind, name: "not shown", text, cut: "" };
    }),
  ];
}

/** Returns what a request shows as one text, of which a person signs the digest; see SignedAnswer.shown_digest. */
export function shownText({ digest, permission, display, warnings, risks, view, preview, need }: PermissionRequest) {
  const values = view?.input.map(({ path, text, bytes, sha256 }) => [path, text, Number(bytes), sha256]);
  const files = view?.files.map((file) => {
    return [file.path, file.sha256, Number(file.bytes), file.lines, file.use, file.changedSinceRead];
  });
  const hidden = preview?.hidden && [preview.hidden.count, preview.hidden.paths];
  return JSON.stringify([
    ...[digest, permission, display, warnings, risks.map(({ kind, parts }) => [kind, parts])],
    view && [view.tool, view.title, values, files, view.complete, view.missing, view.inputUrl, view.targets],
    preview && [preview.diff, preview.command, preview.paths, preview.hosts, preview.url, preview.text, hidden],
    need && [
      need.all.map(({ approve, from }) => [approve, from]),
      ...[need.reject, need.method, need.reasonRequired, need.shownRequired, need.otherPerson],
    ],
  ]);
}

/** The digest of a request's view, as the service computed it. */
export const viewDigestOf = ({ view }: Pick<PermissionRequest, "view">) => view?.digest ?? "";

/** The values that the form of a question shows. */
const formed = /^\/questions\/\d+\/(question|header|multiple|custom|options|options\/\d+\/(label|description))$/;

/** A call on one line: its command, otherwise the tool and the beginning of its values. */
export function callSummary(request: PermissionRequest): string {
  if (request.preview?.command) return request.preview.command;
  const [tool, ...values] = viewLines(request).filter(({ kind }) => kind === "tool" || kind === "input");
  if (tool === undefined || request.question.length > 0) return request.display.join(", ");
  return [tool, ...values.slice(0, 5)].map(({ text }) => text.slice(0, 300)).join(" ");
}

/** True if both requests show the same call. */
export function hasSameView(one: PermissionRequest, other: PermissionRequest): boolean {
  return JSON.stringify(viewLines(one)) === JSON.stringify(viewLines(other));
}

/** True if a request holds only the beginning of its change, or of a value of its input. */
export function isRequestCut({ preview, view }: Pick<PermissionRequest, "preview" | "view">): boolean {
  return (preview?.url ?? "") !== "" || (view?.inputUrl ?? "") !== "";
}

/** Reads the input of a request of which only the beginning is here; returns the request with all of it. */
export async function withWholeInput(
  server: { tools: Pick<Client<typeof ToolService>, "readToolOutput"> },
  request: PermissionRequest,
): Promise<PermissionRequest> {
  const { sessionId, view } = request;
  if (!view || view.inputUrl === "") return request;
  const bytes = await readWhole(server, { sessionId, output: view.inputUrl });
  const leaves = jsonLeaves(JSON.parse(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes)));
  const input = leaves.map(({ path, text }) => ({
    ...{ $typeName: "opencode.tool.v1.ViewLeaf" as const, sha256: "", bytes: BigInt(text.length) },
    ...{ path: visibleLine(path), text: visible(text) },
  }));
  const beside = view.input.filter(({ path }) => path !== "" && !path.startsWith("/"));
  return { ...request, view: { ...view, input: [...input, ...beside], inputUrl: "" } };
}

/** Words for the files of a view. */
const useNames: ReadonlyMap<ViewFileUse, string> = new Map([
  [ViewFileUse.SCRIPT, "runs"],
  [ViewFileUse.BUILD_INPUT, "runs from"],
  [ViewFileUse.PATCH, "applies"],
  [ViewFileUse.STARTUP, "runs first"],
  [ViewFileUse.PROGRAM, "program"],
]);

/** Words for what git has for itself: it reads some, and runs others if it comes to them. */
const gitWords = [
  ["git reads", /(^|\/)(\.?gitconfig|\.?gitattributes|\.?git\/(info\/)?(config(\.worktree)?|attributes|ignore))$/],
  ["git may run", /(^|\/)(\.?git|\.?githooks|\.husky)\//],
] as const;

function useWords({ use, path }: ViewFile): string {
  const known = use === ViewFileUse.STARTUP ? gitWords.find(([, paths]) => paths.test(path)) : undefined;
  return known?.[0] ?? useNames.get(use) ?? "uses";
}

function fileWords({ path, bytes, lines, changedSinceRead }: ViewFile): string {
  return [
    visibleLine(path),
    lines === 0 ? sizeOf(Number(bytes)) : countOf(lines, "line"),
    ...(changedSinceRead ? ["changed since the agent read it"] : []),
  ].join(", ");
}
