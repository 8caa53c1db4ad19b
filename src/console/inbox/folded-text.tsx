import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { countOf } from "../../view/quantities.ts";
import { LongText } from "../parts/long-text.tsx";

/** A text up to this size is shown whole. */
const maxCharacters = 2_000;
const maxLines = 24;
/** The beginning and the end of a longer one, so that both fit on a screen. */
const headCharacters = 400;
const headLines = 8;
const tailCharacters = 300;
const tailLines = 4;

/** The properties of a text that may be folded. */
interface FoldedTextProps {
  /** The text, escaped. */
  text: string;
  label: string;
  /** Description of what `text` leaves out; then `load` has to bring the rest. */
  cut?: string;
  load?: () => void;
  /** Opens the text as its button does. */
  isOpen: boolean;
  line?: (text: string, index: number) => ComponentChildren;
  /** Called once all of the text is on the page. */
  onWhole: () => void;
}

/** A text of a request. Of a long one the beginning, its length and its end are shown until the reader opens all of it. */
export function FoldedText({ text, label, cut = "", load, isOpen, line = plainLine, onWhole }: FoldedTextProps) {
  const wanted = useSignal(false);
  const isWanted = wanted.value || isOpen;
  useEffect(() => {
    if (isWanted && cut !== "") load?.();
  }, [isWanted, cut]);
  const folded = isWanted && cut === "" ? undefined : foldOf(text, cut);
  if (folded === undefined) {
    return <LongText lines={text.split("\n")} label={label} isOpen={isWanted} line={line} onWhole={onWhole} />;
  }
  const { head, tail, left } = folded;
  return (
    <div class="cut-text">
      <LongText lines={head.split("\n")} label={`Beginning of the ${label.toLowerCase()}`} line={line} />
      <p class="cut">
        <span>… {left} …</span>{" "}
        <button
          type="button"
          onClick={() => {
            wanted.value = true;
          }}
        >
          {cut === "" ? `Show all ${text.length} characters` : "Show all of it"}
        </button>
      </p>
      {tail !== "" && (
        <LongText lines={tail.split("\n")} label={`End of the ${label.toLowerCase()}`} line={plainLine} />
      )}
    </div>
  );
}

function plainLine(text: string, i: number) {
  return <p key={i}>{text}</p>;
}

/** Cuts a long text in the middle, or one of which only the beginning is here; undefined for one that is short enough. */
function foldOf(text: string, cut: string): { head: string; tail: string; left: string } | undefined {
  const lines = text.split("\n");
  if (cut === "" && text.length <= maxCharacters && lines.length <= maxLines) return undefined;
  const head = lines.slice(0, headLines).join("\n").slice(0, headCharacters);
  if (cut !== "") return { head, tail: "", left: cut };
  const tail = lines.slice(-tailLines).join("\n").slice(-tailCharacters);
  return { head, tail, left: countOf(text.length - head.length - tail.length, "more character") };
}
