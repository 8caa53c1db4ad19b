import { createHash } from "node:crypto";
import { create, type JsonObject, type MessageInitShape, toJson } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  PermissionEscalationSchema,
  type Question,
  QuestionSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type CallView,
  CallViewSchema,
  type PermissionRequest,
  PermissionRequestSchema,
  RiskSchema,
  type ViewFileSchema,
  type ViewLeaf,
  ViewLeafSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { canonicalJson, type JsonLeaf, jsonLeaves } from "../core/json.ts";
import { visible, visibleLine } from "../core/visible.ts";
import type { NeededApproval } from "../policy/approval-rules.ts";
import { displayPattern, lookAlikeWarnings, warningsAbout } from "../policy/display.ts";
import type { ExpandedAsk, Subject } from "../policy/model.ts";
import { risksShown } from "../policy/risk.ts";
import { bindingOf } from "./grants.ts";
import type { UnapprovedAsk } from "./judge-asks.ts";
import { offersFor, type PlainAlways, plainPatterns } from "./offers.ts";

/** The parts of a call that approvers see, the same in all of its permission requests. */
export interface ShownCall {
  tool: string;
  title: string;
  /** The input as it will run. */
  input: JsonObject;
  /** Values that a running body gives with its ask, without those that the input has too. */
  metadata?: JsonObject | undefined;
  /** Files that run or are read as code, to which the approval is bound. */
  files?: readonly MessageInitShape<typeof ViewFileSchema>[];
  /** Descriptions of what cannot be shown. */
  missing?: readonly string[];
  /** Descriptions of where the call sends what it sends. */
  targets?: readonly string[];
}

/** Bytes of paths and texts that the leaves of a view have together. */
const maxInlineBytes = 16 * 1024;
/** Bytes of those that are whole, where not all can be. The rest is for the beginnings of the others. */
const maxWholeBytes = 12 * 1024;
const maxCutLeaves = 64;
/** Bytes of what a body says of its ask. */
const maxSaidBytes = 4 * 1024;
const maxPathBytes = 1_024;
/** Size from which a value is not readable for a person, even in full. */
const maxReadableBytes = 1024 * 1024;

/** Builds the view of a call, without the digest. A view with a cut leaf needs the whole input at its `inputUrl`. */
export function createCallView(call: ShownCall): CallView {
  const { tool, title, input, metadata = {}, files = [], missing = [], targets = [] } = call;
  const leaves = jsonLeaves(input).map(withBytes);
  const known = new Set(leaves.map(({ text }) => text));
  const isSaid = ({ path, text }: Leaf) => path !== "" && !known.has(text);
  const said = jsonLeaves(metadata).map(withBytes).filter(isSaid);
  const saidBytes = said.reduce((sum, leaf) => sum + sizeOf(leaf), 0);
  const isTooMuch = saidBytes > maxSaidBytes;
  const large = leaves.filter(({ bytes }) => bytes > maxReadableBytes);
  const unseen = [
    ...missing,
    ...(isTooMuch
      ? [`what the tool says of this ask: it has ${saidBytes} bytes, over ${maxSaidBytes / 1024} KiB`]
      : []),
    ...large.map(({ path, bytes }) => `the whole value of ${nameOf(path)}: it has ${bytes} bytes, over 1 MiB`),
  ];
  return create(CallViewSchema, {
    tool: visibleLine(tool),
    title: visibleLine(title),
    input: [
      ...boundLeaves(input, leaves),
      ...(isTooMuch ? [] : said.map((leaf) => wholeLeaf({ ...leaf, path: `metadata${leaf.path}` }))),
    ],
    files: [...files],
    missing: unseen.map(visibleLine),
    targets: targets.map(visibleLine),
    complete: unseen.length === 0,
  });
}

/** True if a leaf has only the beginning of its value. */
export function isViewCut({ input }: Pick<CallView, "input">): boolean {
  return input.some(({ sha256 }) => sha256 !== "");
}

/** Computes the digest of what an approver sees of a request; see `CallView.digest` in the contract. */
function viewDigest(request: PermissionRequest): string {
  const { digest, permission, display, warnings, view, preview, risks, question, offers, need } = request;
  const seen = toJson(
    PermissionRequestSchema,
    create(PermissionRequestSchema, {
      ...{ digest, permission, display, warnings, risks, question },
      ...(view && { view: { ...view, digest: "" } }),
      ...(preview && { preview }),
      ...(need && { need }),
      offers: offers.map((offer) => ({ ...offer, expires: 0 })),
    }),
  );
  return sha256Of(canonicalJson(seen));
}

interface Leaf extends JsonLeaf {
  bytes: number;
}

const withBytes = (leaf: JsonLeaf): Leaf => ({ ...leaf, bytes: Buffer.byteLength(leaf.text) });
const sizeOf = ({ path, bytes }: Leaf) => bytes + Buffer.byteLength(path);

/** Brings the leaves to the size of a view: the largest are cut, and what is too much for that is one leaf for the whole input. */
function boundLeaves(input: JsonObject, leaves: readonly Leaf[]): ViewLeaf[] {
  if (leaves.reduce((sum, leaf) => sum + sizeOf(leaf), 0) <= maxInlineBytes) return leaves.map(wholeLeaf);
  const whole = new Set<Leaf>();
  let left = maxInlineBytes;
  for (const leaf of leaves.toSorted((a, b) => sizeOf(a) - sizeOf(b))) {
    if (maxInlineBytes - left + sizeOf(leaf) > maxWholeBytes) break;
    left -= sizeOf(leaf);
    whole.add(leaf);
  }
  const large = leaves.filter((leaf) => !whole.has(leaf));
  const cut = large.filter(({ path }) => Buffer.byteLength(path) <= maxPathBytes).slice(0, maxCutLeaves);
  const isAll = cut.length === large.length;
  const share = Math.floor(left / (cut.length + (isAll ? 0 : 1)));
  const isCut = new Set(cut);
  const shown = leaves.flatMap((leaf) =>
    whole.has(leaf) ? wholeLeaf(leaf) : isCut.has(leaf) ? cutLeaf(leaf, share) : [],
  );
  if (isAll) return shown;
  const text = canonicalJson(input);
  return [...shown, cutLeaf({ path: "", text, bytes: Buffer.byteLength(text) }, share)];
}

function wholeLeaf({ path, text, bytes }: Leaf): ViewLeaf {
  return create(ViewLeafSchema, { path: visibleLine(path), text: visible(text), bytes: BigInt(bytes) });
}

function cutLeaf({ path, text, bytes }: Leaf, maxBytes: number): ViewLeaf {
  // A character that is cut at the end is left out.
  const beginning = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Buffer.from(text).subarray(0, maxBytes), {
    stream: true,
  });
  return create(ViewLeafSchema, {
    path: visibleLine(path),
    text: visible(beginning),
    bytes: BigInt(bytes),
    sha256: sha256Of(text),
  });
}

const nameOf = (path: string) => (path.length > 200 ? `${path.slice(0, 200)}…` : path || "the input");
const sha256Of = (text: string) => createHash("sha256").update(text).digest("hex");

/**
 * Builds the permission request of an ask, with its offers and the digest of its view; `fields` come from the call. It is not
 * stored yet, and never built again.
 */
export function toPermissionRequest(
  ask: UnapprovedAsk,
  decisions: readonly PermissionDecision[],
  fields: MessageInitShape<typeof PermissionRequestSchema>,
  { subject, plainAlways, needed }: { subject: Subject; plainAlways: PlainAlways; needed: NeededApproval | undefined },
): PermissionRequest {
  const { permission, patterns, always = [] } = ask;
  const { agent, workspace } = subject;
  const binding = bindingOf(subject, ask);
  const savable = {
    permission,
    patterns: askingPatterns(ask, decisions),
    wildcards: always,
    agent,
    workspace,
    binding,
    times: needed?.times,
    readings: ask.readings,
  };
  const offers = ask.onceOnly || needed?.always === false ? [] : offersFor(savable);
  const request = create(PermissionRequestSchema, {
    ...fields,
    permission,
    patterns: [...patterns],
    metadata: ask.metadata ?? {},
    always: plainPatterns(offers, plainAlways),
    ancestry: [...subject.ancestors.map((ancestor) => ancestor.id), ...(subject.session ? [subject.session.id] : [])],
    offers,
    ...(needed && {
      need: needed.need,
      escalations: needed.escalate.map(({ afterMs, to, channels, requirement }) =>
        create(PermissionEscalationSchema, {
          ...{ at: (fields.created ?? 0) + afterMs, requirement },
          ...{ to: [...to], channels: [...channels] },
        }),
      ),
    }),
    decisions: decisions.filter((decision) => isAbout(decision, ask)),
    binding,
    question: (fields.question ?? []).map(visibleQuestion),
    display: patterns.map((pattern) => displayPattern(permission, ask.pipelines?.get(pattern) ?? pattern)),
    warnings: [
      ...new Set(patterns.flatMap((pattern) => [...warningsAbout(pattern), ...lookAlikeWarnings(pattern)])),
      ...(fields.warnings ?? []),
    ],
    risks: risksShown(ask).map(({ kind, parts }) => create(RiskSchema, { kind, parts: [...parts] })),
  });
  return request.view ? { ...request, view: { ...request.view, digest: viewDigest(request) } } : request;
}

/** Escapes what a person would not see in a question. Labels stay on one line. */
function visibleQuestion({
  question = "",
  header = "",
  options = [],
  multiple = false,
  custom = false,
}: MessageInitShape<typeof QuestionSchema>): Question {
  const line = (text = "") => visible(text).replaceAll(/\s+/g, " ").trim();
  return create(QuestionSchema, {
    question: visible(question),
    header: line(header),
    options: options.map(({ label, description }) => ({ label: line(label), description: line(description) })),
    multiple,
    custom,
  });
}

/** The patterns of an ask for which the rules ask. A pattern that is allowed anyway needs no grant. */
function askingPatterns(ask: ExpandedAsk, decisions: readonly PermissionDecision[]): string[] {
  const asking = decisions.filter((decision) => decision.action === PermissionAction.ASK && isAbout(decision, ask));
  return ask.patterns.filter((pattern) => asking.some((decision) => decision.pattern === pattern));
}

function isAbout({ permission, pattern }: PermissionDecision, ask: ExpandedAsk): boolean {
  const isAsked = ask.patterns.length === 0 ? pattern === "" : ask.patterns.includes(pattern);
  return permission === ask.permission && isAsked;
}
