import type { JsonObject } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { PlanToolResponse, ToolDefinition } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { PlanVerdict } from "../parts/verdict.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { emptyDraft, noProblems, readProblems } from "../schema-form/draft.ts";
import { type Field, objectOf } from "../schema-form/field.ts";
import { InputForm } from "../schema-form/input-form.tsx";
import { CallView } from "../session/call-view.tsx";
import { failureText } from "../shell/load.ts";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { HandSession } from "./hand-session.ts";

/** The last result of the form. */
type Outcome =
  | { readonly kind: "nothing" }
  | { readonly kind: "planned"; readonly plan: PlanToolResponse }
  | { readonly kind: "called"; readonly session: HandSession; readonly callId: string };

/** Calls a tool with the input of a form and shows the call, or plans it without running anything. */
export function CallByHand({
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
