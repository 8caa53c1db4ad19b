import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { PermissionRequest, Preview } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { hiddenWords } from "../../view/hidden.ts";
import { sizeOf } from "../../view/quantities.ts";
import { maxChangeBytes, readWhole } from "../../view/read-output.ts";
import { DiffView } from "../parts/diff-view.tsx";
import { LongText } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { CommandView } from "./command-view.tsx";

/** The effects of an approval: the command, the change, the addresses, the text for the model. The service derived them; the agent did not. Calls `onWhole` once all of it is on the page. */
export function AskPreview({
  request,
  connection,
  onWhole,
}: {
  request: PermissionRequest;
  connection: ConsoleConnection;
  onWhole: () => void;
}) {
  const { preview, display } = request;
  const wholeCommand = useSignal(preview?.command ?? "");
  const wholeDiff = useSignal(preview?.diff ?? "");
  const wholeText = useSignal(preview?.text ?? "");
  const isWhole = wholeCommand.value === "" && wholeDiff.value === "" && wholeText.value === "";
  useEffect(() => {
    if (isWhole) onWhole();
  }, [isWhole]);
  if (preview === undefined) {
    return (
      <section class="block">
        <h3>Request</h3>
        <LongText lines={linesOf(display)} label="Request" line={(text, i) => <p key={i}>{text}</p>} />
        <p class="hint">The content is not shown, because reading it needs approval too.</p>
      </section>
    );
  }
  const { command, diff, hosts, paths, text } = preview;
  const hidden = hiddenWords(preview.hidden);
  const workdir = request.metadata?.workdir;
  return (
    <>
      {command !== "" && (
        <section class="block">
          <h3>Command{typeof workdir === "string" && workdir !== "." ? `, in ${visibleText(workdir)}` : ""}</h3>
          <CommandView
            command={command}
            onWhole={() => {
              wholeCommand.value = "";
            }}
          />
          {hidden !== "" && <p class="hint">{visibleText(hidden)}</p>}
        </section>
      )}
      {hosts.length > 0 && (
        <section class="block">
          <h3>{searches.has(request.permission) ? "Search, sent to this host" : "Address"}</h3>
          {display.map((address) => (
            <p key={address} class="address mono">
              {visibleText(address)}
            </p>
          ))}
          <p>
            {hosts.map((host) => (
              <span key={host} class="chip mono">
                {visibleText(host)}
              </span>
            ))}
          </p>
        </section>
      )}
      {diff !== "" && (
        <section class="block">
          <h3>{paths.length === 1 ? `Change to ${visibleText(paths[0] ?? "")}` : "Change"}</h3>
          <Diff
            preview={preview}
            sessionId={request.sessionId}
            connection={connection}
            onWhole={() => {
              wholeDiff.value = "";
            }}
          />
        </section>
      )}
      {text !== "" && (
        <section class="block">
          <h3>The model will read {paths.map(visibleText).join(", ")}</h3>
          <LongText
            lines={linesOf([text])}
            label="Text for the model"
            line={(line, i) => <p key={i}>{line}</p>}
            onWhole={() => {
              wholeText.value = "";
            }}
          />
        </section>
      )}
      {command === "" && diff === "" && text === "" && hosts.length === 0 && (
        <section class="block">
          <h3>Request</h3>
          <LongText lines={linesOf(display)} label="Request" line={(text, i) => <p key={i}>{text}</p>} />
        </section>
      )}
    </>
  );
}

/** Permissions whose patterns are texts that are sent to the host. */
const searches = new Set(["websearch", "codesearch"]);

/** A diff; a long one is loaded in full on demand. */
function Diff({
  preview: { diff, url, additions, deletions },
  sessionId,
  connection,
  onWhole,
}: {
  preview: Preview;
  sessionId: string;
  connection: ConsoleConnection;
  onWhole: () => void;
}) {
  const whole = useSignal(url === "" ? diff : undefined);
  const problem = useSignal("");
  const load = async () => {
    try {
      const bytes = await readWhole(connection, { sessionId, output: url }, maxChangeBytes);
      if (bytes.length >= maxChangeBytes) throw new Error("It is too large for this page.");
      whole.value = new TextDecoder().decode(bytes);
    } catch (error) {
      problem.value = String(error);
    }
  };
  return (
    <>
      <DiffView
        diff={whole.value ?? diff}
        counts={{ additions, deletions }}
        onWhole={whole.value === undefined ? undefined : onWhole}
      />
      {whole.value === undefined && (
        <p class="more" role="note">
          Only the first {sizeOf(diff.length)} are shown.{" "}
          <button type="button" onClick={() => void load()}>
            Show the whole change
          </button>{" "}
          {problem}
        </p>
      )}
    </>
  );
}

function linesOf(texts: readonly string[]): readonly string[] {
  return texts.flatMap((text) => visibleLines(text).split("\n"));
}
