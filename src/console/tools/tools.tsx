import type { JsonObject } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type {
  PlanToolResponse,
  ToolAnnotations,
  ToolDefinition,
  ToolProblem,
  ToolStats,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { countOf, durationOf } from "../../view/quantities.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { Pre } from "../parts/long-text.tsx";
import { PlanVerdict } from "../parts/verdict.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import {
  emptyDraft,
  type Field,
  kindWords,
  type NamedField,
  noProblems,
  objectOf,
  readProblems,
  readSchema,
} from "../schema-form/field.ts";
import { InputForm } from "../schema-form/input-form.tsx";
import { CallView } from "../session/call-view.tsx";
import { failureText, useLoaded } from "../shell/load.ts";
import { Empty, type PageProps, ProblemText } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { createHandSession, type HandSession } from "./hand-session.ts";

/** The tools of an agent on the left, the selected one with a form to call it on the right. */
export function Tools({ connection, route, feed }: PageProps) {
  const { agents } = connection.server;
  const agent = useSignal(agents.includes("build") ? "build" : (agents[0] ?? ""));
  const model = useSignal({ providerId: "", modelId: "" });
  const session = useMemo(() => createHandSession(connection), [connection]);
  useEffect(() => session.close, [session]);
  const [name] = route.chosen.value;
  const listed = useLoaded(
    (signal) => {
      const request = { agent: agent.value, ...model.value };
      return Array.fromAsync(pagesOf((page) => connection.tools.listTools({ ...request, ...page }, { signal })));
    },
    [connection, agent.value, model.value],
  );
  const stats = useLoaded(
    async (signal) =>
      connection.may("approver", "watcher", "admin") ? await connection.tools.getToolStats({}, { signal }) : undefined,
    [connection, name],
  );
  const statsOf = (tool: string) => stats.value?.tools.find((one) => one.tool === tool);
  const tools = listed.value?.flatMap((page) => page.tools) ?? [];
  const tool = tools.find((one) => one.name === name) ?? (name === undefined ? tools[0] : undefined);
  return (
    <div class="split" data-chosen={name !== undefined}>
      <section class="pane list-pane" aria-label="Tools" aria-busy={listed.isLoading}>
        <header class="pane-head">
          <h1>Tools</h1>
          <p class="hint">{tools.length} available</p>
        </header>
        <div class="tool-filter">
          <label class="labelled">
            <span>Agent</span>
            <select value={agent.value} onChange={({ currentTarget }) => (agent.value = currentTarget.value)}>
              {agents.map((one) => (
                <option key={one} value={one}>
                  {visibleText(one)}
                </option>
              ))}
            </select>
          </label>
          <details>
            <summary>For a model</summary>
            <ModelInput title="Provider" onChange={(providerId) => (model.value = { ...model.value, providerId })} />
            <ModelInput title="Model" onChange={(modelId) => (model.value = { ...model.value, modelId })} />
          </details>
          <ProblemText text={listed.problem} />
          <NotLoaded problems={listed.value?.flatMap((page) => page.problems) ?? []} />
        </div>
        <ul class="tool-list">
          {tools.map((one) => (
            <li key={one.name}>
              <ToolRow tool={one} isCurrent={one === tool} stats={statsOf(one.name)} />
            </li>
          ))}
        </ul>
      </section>
      <section class="pane detail-pane" aria-label="Tool">
        {tool !== undefined && (
          <ToolView
            key={`${tool.name} ${tool.definitionId}`}
            tool={tool}
            stats={statsOf(tool.name)}
            agent={agent.value}
            connection={connection}
            session={session.open}
            asks={feed}
          />
        )}
        {tool === undefined && !listed.isLoading && (
          <Empty title="Tool not found">
            This agent has no tool of that name. <a href="#/tools">Show all tools</a>
          </Empty>
        )}
      </section>
    </div>
  );
}

function ModelInput({ title, onChange }: { title: string; onChange: (value: string) => void }) {
  return (
    <label class="labelled">
      <span>{title}</span>
      <input autocapitalize="off" onChange={({ currentTarget }) => onChange(currentTarget.value.trim())} />
    </label>
  );
}

function NotLoaded({ problems }: { problems: readonly ToolProblem[] }) {
  if (problems.length === 0) return null;
  return (
    <details class="warning" open>
      <summary>
        {problems.length === 1 ? "One file was not loaded" : `${problems.length} files were not loaded`}
      </summary>
      <ul>
        {problems.map(({ path, line, reason }) => (
          <li key={path}>
            <code>
              {visibleText(path)}
              {line > 0 && `:${line}`}
            </code>{" "}
            {visibleText(reason)}
          </li>
        ))}
      </ul>
    </details>
  );
}

function ToolRow({
  tool: { name, description },
  isCurrent,
  stats,
}: {
  tool: ToolDefinition;
  isCurrent: boolean;
  stats: ToolStats | undefined;
}) {
  const [sentence = ""] = /^.*?(?:\.(?=\s)|$)/m.exec(description) ?? [];
  return (
    <a class="tool-row" href={`#${pathOf("tools", name)}`} aria-current={isCurrent ? "true" : undefined}>
      <b class="mono">{visibleText(name)}</b>
      <small>{visibleText(sentence)}</small>
      {stats !== undefined && (
        <small>
          {countOf(stats.count, "call")}
          {stats.errors > 0n && `, ${stats.errors} failed`}
        </small>
      )}
    </a>
  );
}

/** The definition of a tool, and a form to call it. */
function ToolView({
  tool,
  stats,
  ...rest
}: {
  tool: ToolDefinition;
  stats: ToolStats | undefined;
  agent: string;
  connection: ConsoleConnection;
  session: () => Promise<HandSession>;
  asks: AskFeed;
}) {
  const { name, description, annotations, inputSchema, outputSchema, definitionId } = tool;
  const input = useMemo(() => readSchema(inputSchema ?? {}), [inputSchema]);
  return (
    <article class="tool">
      <a class="back" href="#/tools">
        ← Tools
      </a>
      <header>
        <h1 class="mono">{visibleText(name)}</h1>
        <p class="soft">{[...annotationWords(annotations), ...statsWords(stats)].join(" · ")}</p>
      </header>
      <p class="tool-description">{visibleLines(description)}</p>
      <section class="block">
        <h2>Input</h2>
        <SchemaView field={input} />
        <RawSchema schema={inputSchema} />
      </section>
      <section class="block">
        <h2>Output</h2>
        {outputSchema === undefined ? <p>Text.</p> : <SchemaView field={readSchema(outputSchema)} />}
        {outputSchema !== undefined && <RawSchema schema={outputSchema} />}
      </section>
      <p class="soft">
        Definition <code>{definitionId}</code>
      </p>
      <CallByHand tool={tool} field={input} {...rest} />
    </article>
  );
}

function RawSchema({ schema }: { schema: ToolDefinition["inputSchema"] }) {
  return (
    <details class="raw-schema soft">
      <summary>JSON Schema</summary>
      <Pre text={visibleLines(JSON.stringify(schema ?? {}, null, 2))} />
    </details>
  );
}

/** The annotations of the tool's author, in words; policy does not rely on them. */
function annotationWords(annotations: ToolAnnotations | undefined): readonly string[] {
  if (annotations === undefined) return [];
  const { readOnly, idempotent, destructive, openWorld } = annotations;
  const words = [
    readOnly && "read-only",
    idempotent && "idempotent",
    destructive && "destructive",
    openWorld && "reaches outside the workspace",
  ];
  return words.filter((word) => word !== false);
}

function statsWords(stats: ToolStats | undefined): readonly string[] {
  if (stats === undefined) return [];
  const { count, avgDuration, errors, timeouts } = stats;
  const failed = errors > 0n ? `, ${errors} failed${timeouts > 0n ? ` (${timeouts} by timeout)` : ""}` : "";
  return [`${countOf(count, "call")} since the start${failed}, ${durationOf(avgDuration)} on average`];
}

/** The fields of a value with their types, limits and descriptions. */
function SchemaView({ field }: { field: Field }) {
  const fields = fieldsOf(field);
  if (fields === undefined) return <p>{kindWords(field)}</p>;
  if (fields.length === 0) return <p>No fields.</p>;
  return (
    <ul class="schema">
      {fields.map((one) => (
        <li key={one.name}>
          <code>
            <b>{visibleText(one.name)}</b>
          </code>{" "}
          <small>{notesOf(one).map(visibleText).join(" · ")}</small>
          {one.description !== "" && <p class="soft">{visibleText(one.description)}</p>}
          {fieldsOf(one) !== undefined && <SchemaView field={one} />}
        </li>
      ))}
    </ul>
  );
}

/** The fields of an object, or of the objects of a list. */
function fieldsOf({ shape }: Field): readonly NamedField[] | undefined {
  if (shape.kind === "object") return shape.fields;
  return shape.kind === "list" ? fieldsOf(shape.item) : undefined;
}

function notesOf(field: NamedField): readonly string[] {
  const { shape, isRequired, hints, fallback } = field;
  const of = shape.kind === "list" ? shape.item.shape : shape;
  const choices = of.kind === "choice" ? [of.values.map((value) => JSON.stringify(value)).join(", ")] : [];
  const leftOut = fallback === undefined ? "optional" : `optional, default ${JSON.stringify(fallback)}`;
  return [kindWords(field), ...choices, ...hints, isRequired ? "required" : leftOut];
}

/** The last result of the form. */
type Outcome =
  | { readonly kind: "nothing" }
  | { readonly kind: "planned"; readonly plan: PlanToolResponse }
  | { readonly kind: "called"; readonly session: HandSession; readonly callId: string };

/** Calls a tool with the input of a form and shows the call, or plans it without running anything. */
function CallByHand({
  tool,
  field,
  agent,
  connection,
  session,
  asks,
}: {
  tool: ToolDefinition;
  field: Field;
  agent: string;
  connection: ConsoleConnection;
  session: () => Promise<HandSession>;
  asks: AskFeed;
}) {
  const input = useSignal<JsonObject>(objectOf(emptyDraft(field)));
  const outcome = useSignal<Outcome>({ kind: "nothing" });
  const problems = useSignal(noProblems);
  const isSending = useSignal(false);
  const mayCall = connection.may("caller", "admin");
  const mayPlan = connection.may("caller", "approver", "admin");
  const fail = (message: string) => {
    problems.value = readProblems(message, field);
  };

  /** Sends one request at a time and clears earlier problems. */
  const send = async (request: () => Promise<Outcome>) => {
    if (isSending.value) return;
    isSending.value = true;
    problems.value = noProblems;
    try {
      outcome.value = await request();
    } catch (error) {
      outcome.value = { kind: "nothing" };
      fail(failureText(error));
    }
    isSending.value = false;
  };
  const plan = () =>
    send(async () => ({
      kind: "planned",
      plan: await connection.tools.planTool({ tool: tool.name, input: input.value, agent }),
    }));
  const call = () =>
    send(async () => {
      const opened = await session();
      const callId = `hand_${[...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(36)).join("")}`;
      const { definitionId, name } = tool;
      const request = { sessionId: opened.id, callId, tool: name, input: input.value, agent, definitionId };
      await connection.tools.callTool({ ...request, waitMs: 0 });
      void showInvalidInput(request);
      return { kind: "called", session: opened, callId };
    });
  /** Shows invalid input at its fields; every other outcome is shown below the form. */
  const showInvalidInput = async (request: { sessionId: string; callId: string; tool: string; input: JsonObject }) => {
    const { part } = await connection.tools.callTool({ ...request, waitMs: 5_000 });
    if (part?.state.case !== "error" || part.state.value.reason !== ToolErrorReason.INVALID_INPUT) return;
    if (outcome.value.kind === "called" && outcome.value.callId === request.callId) fail(part.state.value.error);
  };

  const came = outcome.value;
  return (
    <section class="by-hand" aria-label="Call this tool">
      <h2>Call this tool</h2>
      {!mayCall && <WhyNot connection={connection} />}
      {(mayCall || mayPlan) && (
        <InputForm
          field={field}
          input={input}
          problems={problems.value}
          onSubmit={() => void (mayCall ? call() : plan())}
        >
          {mayCall && (
            <button type="submit" class="primary" aria-disabled={isSending.value}>
              Call {visibleText(tool.name)}
            </button>
          )}
          {mayPlan && (
            <button type={mayCall ? "button" : "submit"} onClick={mayCall ? () => void plan() : undefined}>
              What would happen?
            </button>
          )}
        </InputForm>
      )}
      <CopyCommand words={["call", tool.name, JSON.stringify(input.value), "--agent", agent]} />
      <PlanVerdict plan={came.kind === "planned" ? came.plan : undefined} />
      {came.kind === "called" && (
        <div ref={intoView}>
          <p class="hint">
            In a separate session: <a href={`#${pathOf("sessions", came.session.id)}`}>{came.session.id}</a>
          </p>
          <CallView
            key={came.callId}
            sessionId={came.session.id}
            callId={came.callId}
            owner={connection.server.principal}
            connection={connection}
            feed={came.session.feed}
            asks={asks}
          />
        </div>
      )}
    </section>
  );
}

function WhyNot({ connection: { server } }: { connection: ConsoleConnection }) {
  return (
    <p class="soft">
      You are signed in as {visibleText(server.principal)}, with the role {server.roles.join(" and ")}. Calling tools
      needs the role caller or admin, so that nobody approves their own calls. Sign in with such a token, or use one in
      a terminal.
    </p>
  );
}

/** Scrolls the result into view: below a long form it would be out of sight. */
function intoView(element: HTMLElement | null): void {
  element?.scrollIntoView({ block: "nearest" });
}
