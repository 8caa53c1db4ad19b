import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { repetitionWords } from "../../view/asks.ts";
import { viewLines } from "../../view/view-lines.ts";
import { ShortId } from "../parts/short-id.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { pathOf } from "../shell/route.ts";

/** Says who asks for what, such as `build asks to run a command` or `build asks 2 questions`. */
export function headingOf(request: PermissionRequest, verb: "asks" | "asked"): string {
  const count = request.question.length;
  if (count > 0) return `${verb} ${count === 1 ? "a question" : `${count} questions`}`;
  return `${verb} to ${intentOf(request)}`;
}

/** Describes what a request wants, as the end of a sentence. */
function intentOf(request: PermissionRequest): string {
  const { preview, permission } = request;
  const [tool] = viewLines(request);
  if (preview?.command || /^bash(:|$)/.test(tool?.text ?? "")) return "run a command";
  if (preview?.diff) return `change ${preview.paths.length > 1 ? `${preview.paths.length} files` : "a file"}`;
  const repetition = repetitionWords(request);
  if (repetition !== "") return `repeat itself: ${repetition}`;
  if (permission === "external_directory" && tool) return `reach outside the workspace with ${tool.text}`;
  return intents.get(permission) ?? `use ${visibleText(permission)}`;
}

const intents = new Map([
  ["task", "start a subagent"],
  ["webfetch", "open a web page"],
  ["websearch", "search the web"],
  ["codesearch", "search code"],
  ["read", "read a file"],
  ["edit", "change a file"],
  ["external_directory", "reach outside the workspace"],
  ["skill", "load a skill"],
]);

/** The ids of a request, at the end of its card. */
export function AskIds({ request: { id, sessionId, tool } }: { request: PermissionRequest }) {
  return (
    <p class="ids">
      <a href={`#${pathOf("requests", id)}`}>
        Request <ShortId id={id} />
      </a>
      <a href={`#${pathOf("sessions", sessionId)}`}>
        session <ShortId id={sessionId} />
      </a>
      {tool && (
        <a href={`#${pathOf("sessions", sessionId, tool.callId)}`}>
          call <ShortId id={tool.callId} />
        </a>
      )}
    </p>
  );
}
