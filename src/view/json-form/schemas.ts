/** Entry of `toolgate/validators`: the JSON form of the contract, as opencode writes it. */
import * as z from "zod";

/** JSON of a tool, a caller or a model: any object. */
const anything = z.record(z.string(), z.unknown());
const moment = z.number().describe("Milliseconds since the epoch");
const count = z.int().nonnegative();

/**
 * Each schema of the JSON form by the name of its file, `NAME.schema.json`. Keys that opencode does not write are
 * optional, so that its JSON is valid too; Toolgate always writes them.
 */
export const jsonForm = z.registry<{ id: string }>();

/** Names a schema, so that others can refer to it and a file is generated for it. */
function named<T extends z.ZodType>(id: string, description: string, schema: T): T {
  const described = schema.describe(description);
  jsonForm.add(described, { id });
  return described;
}

const started = z.object({ start: moment });
const ended = z.object({ start: moment, end: moment, compacted: moment.optional() });
const file = z.object({
  type: z.literal("file"),
  mime: z.string(),
  filename: z.string().optional(),
  url: z.string().describe("A data: URL, or toolgate-output:ID"),
  size: count.optional().describe("Bytes"),
});

export const toolStatePendingSchema = named(
  "toolStatePending",
  "A call that was accepted and not started",
  z.object({ status: z.literal("pending"), input: anything, raw: z.string() }),
);
export type ToolStatePending = z.infer<typeof toolStatePendingSchema>;

export const toolStateRunningSchema = named(
  "toolStateRunning",
  "A call whose tool runs",
  z.object({
    status: z.literal("running"),
    input: anything,
    title: z.string().optional(),
    metadata: anything.optional(),
    time: started,
  }),
);
export type ToolStateRunning = z.infer<typeof toolStateRunningSchema>;

export const toolStateCompletedSchema = named(
  "toolStateCompleted",
  "A call whose tool returned a result",
  z.object({
    status: z.literal("completed"),
    input: anything,
    output: z.string(),
    title: z.string(),
    metadata: anything,
    time: ended,
    attachments: z.array(file).optional(),
    structuredOutput: z.unknown().optional().describe("The result as JSON, of a tool that has a schema for it"),
  }),
);
export type ToolStateCompleted = z.infer<typeof toolStateCompletedSchema>;

export const toolStateErrorSchema = named(
  "toolStateError",
  "A call that ended without a result",
  z.object({
    status: z.literal("error"),
    input: anything,
    error: z.string(),
    metadata: anything.optional(),
    time: ended,
    reason: z
      .enum([
        "unspecified",
        "invalid_input",
        "unknown_tool",
        "stale_tool",
        "denied",
        "rejected",
        "expired",
        "failed",
        "invalid_output",
        "output_limit",
        "timeout",
        "cancelled",
        "executor_lost",
        "changed_after_approval",
        "unavailable",
        "not_reported",
        "guard_not_loaded",
        "result_not_stored",
      ])
      .optional(),
    effects: z
      .enum(["unspecified", "none", "unknown"])
      .optional()
      .describe("Whether the tool may have changed anything"),
  }),
);
export type ToolStateError = z.infer<typeof toolStateErrorSchema>;

export const toolStateSchema = named(
  "toolState",
  "The state of a call",
  z.discriminatedUnion("status", [
    toolStatePendingSchema,
    toolStateRunningSchema,
    toolStateCompletedSchema,
    toolStateErrorSchema,
  ]),
);
export type ToolState = z.infer<typeof toolStateSchema>;

const requester = z
  .object({ kind: z.string(), place: z.string(), subagent: z.string() })
  .describe("The agent that asks, in its own words");

const person = z
  .object({ id: z.string(), issuer: z.string(), subject: z.string(), name: z.string(), groups: z.array(z.string()) })
  .describe("The person behind the agent");

export const toolPartSchema = named(
  "toolPart",
  "A tool call, as a part of a message",
  z.object({
    id: z.string(),
    sessionID: z.string(),
    messageID: z.string(),
    type: z.literal("tool"),
    callID: z.string(),
    tool: z.string(),
    state: toolStateSchema,
    metadata: anything.optional(),
    agent: z.string().optional(),
    permissionIDs: z.array(z.string()).optional().describe("The asks that are open"),
    revision: count.optional().describe("The number of the last event that is folded in"),
    inputElided: z.boolean().optional().describe("The state leaves out an input of over 16 KiB"),
    originalInput: anything.optional().describe("What the caller sent, where an approver edited it"),
    editedBy: z.string().optional().describe("Who edited the input last"),
    executor: z
      .enum(["unspecified", "local", "tool_process", "worker", "delegated"])
      .optional()
      .describe("What runs it"),
    worker: z.string().optional().describe("The fleet whose worker runs it"),
    buildID: z.string().optional().describe("The code of that worker"),
    reportedBy: z.string().optional().describe("The principal that reported the result of a delegated call"),
    reportedInputDigest: z.string().optional().describe("The digest of the input that ran, as reported"),
    cancelRequested: z.boolean().optional().describe("The agent that runs it was asked to stop"),
    callerUid: count.optional().describe("The user of the operating system that called"),
    requester: requester.optional(),
    person: person.optional(),
    background: z.boolean().optional().describe("A tool made the call and did not wait for it"),
    childSessionID: z.string().optional().describe("The session of the subagent of a task"),
    parentCallID: z.string().optional().describe("The call whose tool made this one"),
  }),
);
export type ToolPart = z.infer<typeof toolPartSchema>;

export const permissionToolContextSchema = named(
  "permissionToolContext",
  "The call of an ask",
  z.object({ messageID: z.string(), callID: z.string() }),
);
export type PermissionToolContext = z.infer<typeof permissionToolContextSchema>;

export const permissionReplySchema = named(
  "permissionReply",
  "A person's answer to an ask",
  z.enum(["once", "always", "reject"]),
);
export type PermissionReply = z.infer<typeof permissionReplySchema>;

const scope = z.enum(["unspecified", "session", "agent", "project"]);
const match = z.union([
  z.object({ exact: z.string() }),
  z.object({
    prefix: z.object({ words: z.array(z.string()), riskKinds: z.array(count), options: z.array(z.string()) }),
  }),
  z.object({ wildcard: z.string() }),
]);

const rule = z.object({
  permission: z.string(),
  pattern: z.string(),
  action: z.enum(["unspecified", "allow", "ask", "deny"]),
});
const layer = z.enum([
  "unspecified",
  "defaults",
  "config",
  "agent",
  "request",
  "session",
  "inherited",
  "grant",
  "engine",
  "agent_limits",
  "workspace",
  "preset",
]);
const decision = z.object({
  permission: z.string(),
  pattern: z.string(),
  action: rule.shape.action,
  layer,
  ruleIndex: count.optional(),
  rule: rule.optional(),
  grantID: z.string(),
  reason: z.string(),
  reasonCode: z.string(),
  matches: z.array(
    z.object({
      layer,
      source: z.string(),
      ruleIndex: count,
      rule: rule.optional(),
      text: z.string(),
      decided: z.boolean(),
    }),
  ),
  moreMatches: count,
});

const risk = z.object({
  kind: z.enum([
    "unspecified",
    "credentials",
    "downloaded_code",
    "delete",
    "publish",
    "outside",
    "network",
    "packages",
  ]),
  parts: z.array(z.string()),
});

const question = z.object({
  question: z.string(),
  header: z.string(),
  options: z.array(z.object({ label: z.string(), description: z.string() })),
  multiple: z.boolean(),
  custom: z.boolean(),
});

const outcome = z.enum(["unspecified", "once", "always", "reject", "expired", "withdrawn", "denied", "edited"]);
const need = z
  .object({ all: z.array(z.object({ approve: count, from: z.array(z.string()) })), reject: count })
  .describe("How many persons have to approve, and of which groups");
const vote = z.object({ person: person.optional(), outcome, reason: z.string(), time: moment, by: z.string() });
const escalation = z.object({ at: moment, to: z.array(z.string()), channels: z.array(z.string()), taken: moment });

const view = z.object({
  tool: z.string(),
  title: z.string(),
  input: z.array(z.object({ path: z.string(), text: z.string(), bytes: count, sha256: z.string() })),
  files: z.array(
    z.object({
      path: z.string(),
      sha256: z.string(),
      bytes: count,
      lines: count,
      use: z.enum(["unspecified", "script", "build_input", "patch", "startup", "program"]),
      changedSinceRead: z.boolean(),
    }),
  ),
  complete: z.boolean(),
  missing: z.array(z.string()),
  digest: z.string(),
  inputUrl: z.string(),
});

export const permissionRequestSchema = named(
  "permissionRequest",
  "A question that a call waits on",
  z.object({
    id: z.string().regex(/^per/),
    sessionID: z.string().regex(/^ses/),
    permission: z.string(),
    patterns: z.array(z.string()),
    metadata: anything,
    always: z.array(z.string()),
    tool: permissionToolContextSchema.optional(),
    agent: z.string().optional(),
    ancestry: z.array(z.string()).optional().describe("Session ids, root first"),
    created: moment.optional(),
    expires: moment.optional(),
    digest: z.string().optional(),
    preview: z
      .object({
        diff: z.string(),
        command: z.string(),
        paths: z.array(z.string()),
        hosts: z.array(z.string()),
        url: z.string(),
        text: z.string().optional().describe("What the model will be given to follow"),
      })
      .optional()
      .describe("What will happen"),
    offers: z
      .array(
        z.object({
          id: z.string(),
          text: z.string(),
          scope,
          match: match.optional(),
          expires: moment,
          binding: z.string(),
          also: z.array(match).optional(),
        }),
      )
      .optional()
      .describe('What "always" may save, narrowest first'),
    decisions: z.array(decision).optional().describe("Why it is asked, for each pattern"),
    binding: z.string().optional().describe("What a grant must be bound to in order to cover this"),
    display: z.array(z.string()).optional().describe("Each pattern as it may be shown"),
    warnings: z.array(z.string()).optional().describe("What a person would not see in the patterns"),
    question: z.array(question).optional().describe("What it asks a person, with the form of each answer"),
    risks: z.array(risk).optional().describe("What deserves attention, the heaviest kind first"),
    requester: requester.optional(),
    person: person.optional(),
    need: need.optional(),
    votes: z.array(vote).optional().describe("One of each person, where there is a need"),
    escalations: z.array(escalation).optional().describe("Whom it adds after a time"),
    onBehalfOf: z.array(person).optional().describe("In whose place an approval of the reader counts as well"),
    view: view.optional().describe("The whole call, as approvers see it"),
    changed: z.string().optional().describe("Why it is asked again"),
  }),
);
export type PermissionRequest = z.infer<typeof permissionRequestSchema>;

const progress = z.object({ callID: z.string(), title: z.string().optional(), metadata: anything.optional() });
const output = z.object({
  callID: z.string(),
  offset: count,
  data: z.string().describe("Base64"),
  length: count,
  output: z.string(),
});
const settled = z.object({
  permissionID: z.string(),
  sessionID: z.string(),
  callID: z.string(),
  outcome,
  by: z.string(),
  message: z.string(),
  replyID: z.string(),
  grantID: z.string(),
  time: moment,
  answerDigest: z.string().optional(),
  settledWith: z.string().optional(),
  answers: z
    .array(z.object({ values: z.array(z.string()) }))
    .optional()
    .describe("One for each question"),
  shown: z.enum(["unspecified", "unknown", "whole", "partial"]).optional().describe("What the approver could see"),
});
const grant = z.object({
  id: z.string(),
  scope,
  sessionID: z.string(),
  permission: z.string(),
  match: match.optional(),
  text: z.string(),
  workspace: z.string(),
  tool: z.string(),
  binding: z.string(),
  permissionID: z.string(),
  grantedBy: z.string(),
  created: moment,
  expires: moment,
  revoked: moment,
  agent: z.string(),
  lastUsed: moment.optional(),
  suspended: moment.optional().describe("When a restore suspended it"),
});

const backgroundEnded = z.object({
  callID: z.string(),
  tool: z.string(),
  childSessionID: z.string(),
  reason: z.string().describe("Why the call failed; unspecified if it completed"),
});

const voted = z.object({
  permissionID: z.string(),
  sessionID: z.string(),
  callID: z.string(),
  votes: z.array(vote),
});

const escalated = z.object({
  permissionID: z.string(),
  sessionID: z.string(),
  callID: z.string(),
  escalations: z.array(escalation),
});

const entry = { seq: count, time: moment, sessionID: z.string() };

export const sessionEventSchema = named(
  "sessionEvent",
  "An entry of a session's log",
  z.discriminatedUnion("type", [
    z.object({
      ...entry,
      type: z.literal("message.part.updated"),
      properties: z.object({ sessionID: z.string(), part: toolPartSchema, time: moment }),
    }),
    z.object({ ...entry, type: z.literal("progress"), properties: progress }),
    z.object({ ...entry, type: z.literal("output"), properties: output }),
    z.object({
      ...entry,
      type: z.literal("permission.updated"),
      properties: permissionRequestSchema.extend({
        type: z.string(),
        pattern: z.array(z.string()),
        messageID: z.string(),
        callID: z.string(),
        title: z.string(),
        time: z.object({ created: moment }),
      }),
    }),
    z.object({
      ...entry,
      type: z.literal("permission.replied"),
      properties: settled.extend({
        requestID: z.string(),
        reply: permissionReplySchema,
        response: permissionReplySchema,
      }),
    }),
    z.object({ ...entry, type: z.literal("granted"), properties: grant }),
    z.object({ ...entry, type: z.literal("revoked"), properties: grant }),
    z.object({ ...entry, type: z.literal("background_ended"), properties: backgroundEnded }),
    z.object({ ...entry, type: z.literal("permission_voted"), properties: voted }),
    z.object({ ...entry, type: z.literal("permission_escalated"), properties: escalated }),
  ]),
);
export type SessionEvent = z.infer<typeof sessionEventSchema>;
