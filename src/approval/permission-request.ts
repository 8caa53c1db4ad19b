import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  PermissionAction,
  type PermissionDecision,
  type Question,
  QuestionSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, PermissionRequestSchema, RiskSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { visible } from "../core/visible.ts";
import { displayPattern, warningsAbout } from "../policy/display.ts";
import { lookAlikeWarnings } from "../policy/look-alikes.ts";
import type { ExpandedAsk } from "../policy/model.ts";
import { mergeRisks, risksOfAsk } from "../policy/risk.ts";
import type { Subject } from "../policy/subject.ts";
import { viewDigest } from "./call-view.ts";
import type { UnapprovedAsk } from "./judge-asks.ts";
import { offersFor, type PlainAlways, plainPatterns } from "./offers.ts";
import { bindingOf } from "./with-grants.ts";

/**
 * Builds the permission request of an ask, with its offers and the digest of its view; `fields` come from the call. It is not
 * stored yet, and never built again.
 */
export function toPermissionRequest(
  ask: UnapprovedAsk,
  decisions: readonly PermissionDecision[],
  fields: MessageInitShape<typeof PermissionRequestSchema>,
  subject: Subject,
  plainAlways: PlainAlways,
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
    readings: ask.readings,
  };
  const offers = ask.onceOnly ? [] : offersFor(savable);
  const request = create(PermissionRequestSchema, {
    ...fields,
    permission,
    patterns: [...patterns],
    metadata: ask.metadata ?? {},
    always: plainPatterns(offers, plainAlways),
    ancestry: [...subject.ancestors.map((ancestor) => ancestor.id), ...(subject.session ? [subject.session.id] : [])],
    offers,
    decisions: decisions.filter((decision) => isAbout(decision, ask)),
    binding,
    question: (fields.question ?? []).map(visibleQuestion),
    display: patterns.map((pattern) => displayPattern(permission, ask.pipelines?.get(pattern) ?? pattern)),
    warnings: [...new Set(patterns.flatMap((pattern) => [...warningsAbout(pattern), ...lookAlikeWarnings(pattern)]))],
    risks: mergeRisks([...(ask.risks ?? []), ...risksOfAsk(ask)]).map(({ kind, parts }) =>
      create(RiskSchema, { kind, parts: [...parts] }),
    ),
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
