import { useSignal } from "@preact/signals";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { sizeOf } from "../../view/quantities.ts";
import { DiffView } from "../parts/diff-view.tsx";
import { LongText } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { readWhole } from "../stream/read-output.ts";

/** The effects of an approval: the command, the change, the addresses. The service derived them; the agent did not. */
export function AskPreview({ request, connection }: { request: PermissionRequest; connection: ConsoleConnection }) {
  const { preview, display } = request;
  if (preview === undefined) {
    return (
      <section class="block">
        <h3>Request</h3>
        <LongText lines={linesOf(display)} label="Request" line={(text, i) => <p key={i}>{text}</p>} />
        <p class="hint">The content is not shown, because reading it needs approval too.</p>
      </section>
    );
  }
  const { command, diff, hosts, url, paths } = preview;
  const workdir = request.metadata?.workdir;
  return (
    <>
      {command !== "" && (
        <section class="block">
          <h3>Command{typeof workdir === "string" && workdir !== "." ? `, in ${visibleText(workdir)}` : ""}</h3>
          <LongText
            lines={linesOf([command])}
            label="Command"
            line={(text, i) => (
              <p key={i} class="command-line">
                {text}
              </p>
            )}
          />
        </section>
      )}
      {hosts.length > 0 && (
        <section class="block">
          <h3>Address</h3>
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
          <Diff diff={diff} url={url} request={request} connection={connection} />
        </section>
      )}
      {command === "" && diff === "" && hosts.length === 0 && (
        <section class="block">
          <h3>Request</h3>
          <LongText lines={linesOf(display)} label="Request" line={(text, i) => <p key={i}>{text}</p>} />
        </section>
      )}
    </>
  );
}

/** A diff; a long one is loaded in full on demand. */
function Diff({
  diff,
  url,
  request,
  connection,
}: {
  diff: string;
  url: string;
  request: PermissionRequest;
  connection: ConsoleConnection;
}) {
  const whole = useSignal<string | undefined>(undefined);
  const problem = useSignal("");
  const load = async () => {
    try {
      const bytes = await readWhole(connection, { sessionId: request.sessionId, output: url });
      whole.value = new TextDecoder().decode(bytes);
    } catch (error) {
      problem.value = String(error);
    }
  };
  return (
    <>
      <DiffView diff={whole.value ?? diff} />
      {url !== "" && whole.value === undefined && (
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
