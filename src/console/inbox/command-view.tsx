import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { countOf } from "../../view/quantities.ts";
import { LongText } from "../parts/long-text.tsx";
import { visibleLines } from "../parts/visible-text.ts";

/** A command up to this size is shown whole. */
const maxCharacters = 2_000;
const maxLines = 24;
/** The beginning and the end of a longer one, so that both fit on a screen. */
const headCharacters = 400;
const headLines = 8;
const tailCharacters = 300;
const tailLines = 4;

/** A command line. Of a long one the beginning, its length and its end are shown until the reader asks for the whole. */
export function CommandView({ command, onWhole }: { command: string; onWhole: () => void }) {
  const text = visibleLines(command);
  const open = useSignal("");
  const cut = open.value === text ? undefined : cutOf(text);
  const isWhole = cut === undefined;
  useEffect(() => {
    if (isWhole) onWhole();
  }, [isWhole, text]);
  if (cut === undefined) {
    return <LongText lines={text.split("\n")} label="Command" isOpen={open.value === text} line={commandLine} />;
  }
  return (
    <div class="cut-command">
      <LongText lines={cut.head.split("\n")} label="Beginning of the command" line={commandLine} />
      <p class="cut">
        <span>… {countOf(cut.left, "more character")} …</span>{" "}
        <button
          type="button"
          onClick={() => {
            open.value = text;
          }}
        >
          Show all {text.length} characters
        </button>
      </p>
      <LongText lines={cut.tail.split("\n")} label="End of the command" line={plainLine} />
    </div>
  );
}

function commandLine(text: string, i: number) {
  return (
    <p key={i} class="command-line">
      {text}
    </p>
  );
}

function plainLine(text: string, i: number) {
  return <p key={i}>{text}</p>;
}

/** Cuts a long text in the middle; undefined for one that is short enough. */
function cutOf(text: string): { head: string; tail: string; left: number } | undefined {
  const lines = text.split("\n");
  if (text.length <= maxCharacters && lines.length <= maxLines) return undefined;
  const head = lines.slice(0, headLines).join("\n").slice(0, headCharacters);
  const tail = lines.slice(-tailLines).join("\n").slice(-tailCharacters);
  return { head, tail, left: text.length - head.length - tail.length };
}
