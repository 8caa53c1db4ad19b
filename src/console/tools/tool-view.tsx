import { useMemo } from "preact/hooks";
import type { ToolAnnotations, ToolDefinition, ToolStats } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { countOf, durationOf } from "../../view/quantities.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { Pre } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { readSchema } from "../schema-form/field.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { CallByHand } from "./call-by-hand.tsx";
import type { HandSession } from "./hand-session.ts";
import { SchemaView } from "./schema-view.tsx";

/** The definition of a tool, and a form to call it. */
export function ToolView({
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
