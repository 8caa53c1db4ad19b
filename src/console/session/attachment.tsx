import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { FilePart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { sizeOf } from "../../view/quantities.ts";
import { readWhole } from "../../view/read-output.ts";
import { visibleText } from "../parts/visible-text.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** A file that a tool returned: pictures are shown, other files can be saved. The browser never opens one as a page. */
export function AttachmentView({
  file: { url, mime, filename, size },
  sessionId,
  connection,
}: {
  file: FilePart;
  sessionId: string;
  connection: ConsoleConnection;
}) {
  const address = useSignal("");
  const problem = useSignal("");
  useEffect(() => {
    if (url.startsWith("data:")) {
      address.value = url;
      return;
    }
    let made = "";
    readWhole(connection, { sessionId, output: url }).then(
      (bytes) => {
        made = URL.createObjectURL(new Blob([bytes], { type: isPicture(mime) ? mime : "application/octet-stream" }));
        address.value = made;
      },
      (error: unknown) => {
        problem.value = String(error);
      },
    );
    return () => URL.revokeObjectURL(made);
  }, [url]);
  const name = visibleText(filename ?? "attachment");
  return (
    <figure class="attachment">
      {isPicture(mime) && address.value !== "" && <img src={address.value} alt={name} />}
      <figcaption>
        {address.value === "" ? (
          name
        ) : (
          <a href={address.value} download={filename ?? "attachment"}>
            {name}
          </a>
        )}{" "}
        <small>
          {visibleText(mime)}, {sizeOf(Number(size))} {problem}
        </small>
      </figcaption>
    </figure>
  );
}

const isPicture = (mime: string) => /^image\/(png|jpeg|gif|webp|avif|svg\+xml)$/.test(mime);
