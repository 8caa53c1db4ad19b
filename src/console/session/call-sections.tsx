import type { JsonObject } from "@bufbuild/protobuf";
import type { FilePart, ToolPart, ToolStateError } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { effectsWords } from "../../view/calls.ts";
import { namedPlacesOf, placeText } from "../../view/places.ts";
import { capitalized } from "../../view/words.ts";
import { Pre } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { AttachmentView } from "./attachment.tsx";

/** The message of a failed call, and the effects that it may have had. */
export function Failure({ error: { error, effects } }: { error: ToolStateError }) {
  return (
    <div class="failure">
      <Pre text={visibleLines(error)} />
      <p>{capitalized(effectsWords(effects))}.</p>
    </div>
  );
}

/** The input of a call by argument. */
export function Input({ input }: { input: JsonObject | undefined }) {
  const fields = Object.entries(input ?? {});
  if (fields.length === 0) return null;
  return (
    <section class="block">
      <h2>Input</h2>
      <dl class="fields">
        {fields.map(([name, value]) => (
          <div key={name}>
            <dt>{visibleText(name)}</dt>
            <dd>
              <Pre text={visibleLines(typeof value === "string" ? value : JSON.stringify(value, null, 2))} />
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** The places that the output names: each opens in an editor, and its line unfolds to the lines around it. */
export function Places({ part }: { part: ToolPart }) {
  const { directory, places } = namedPlacesOf(part);
  if (places.length === 0) return null;
  return (
    <section class="block">
      <h2>Places, to open in VS Code</h2>
      <ul class="places mono">
        {places.map((place, i) => (
          <li key={i}>
            <a href={encodeURI(`vscode://file${directory}/${placeText(place)}`).replaceAll("#", "%23")}>
              {visibleText(placeText(place))}
            </a>
            {place.preview && (
              <details>
                <summary>{visibleText(/^> +\d+ (.*)/m.exec(place.preview)?.[1] ?? "")}</summary>
                <Pre text={visibleLines(place.preview)} />
              </details>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The files that a call returned. */
export function Attachments({
  files,
  sessionId,
  connection,
}: {
  files: readonly FilePart[];
  sessionId: string;
  connection: ConsoleConnection;
}) {
  if (files.length === 0) return null;
  return (
    <section class="block">
      <h2>Attachments</h2>
      {files.map((file) => (
        <AttachmentView key={file.url} file={file} sessionId={sessionId} connection={connection} />
      ))}
    </section>
  );
}

/** The metadata that tools return for user interfaces, and the structured output. */
export function Metadata({ part: { state } }: { part: ToolPart }) {
  const metadata = state.value !== undefined && "metadata" in state.value ? state.value.metadata : undefined;
  const structured = state.case === "completed" ? state.value.structuredOutput : undefined;
  if (metadata === undefined && structured === undefined) return null;
  return (
    <details class="block">
      <summary>Metadata</summary>
      <Pre text={visibleJson(metadata)} />
      {structured !== undefined && <Pre text={visibleJson(structured)} />}
    </details>
  );
}

/** A value as indented JSON that is safe to show. */
export const visibleJson = (value: unknown) => visibleLines(JSON.stringify(value ?? null, null, 2));
