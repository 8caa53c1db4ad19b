import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { type DiffLine, parseDiff } from "./diff.ts";
import { LongText } from "./long-text.tsx";
import { visibleLines } from "./visible-text.ts";

/** A diff of up to this number of lines is shown whole; of a longer one the beginning. */
const maxLines = 120;
const headLines = 30;

/** A unified diff with line numbers and colours; `counts` are those of the whole change, of which `diff` may be the beginning. */
export function DiffView({
  diff,
  counts,
  of = "",
  isCut = false,
  isOpen = true,
  load,
  onWhole,
}: {
  diff: string;
  counts: { additions: number; deletions: number };
  /** The name of what changes, where a page shows several changes. */
  of?: string;
  /** True if `diff` is only the beginning; then `load` has to bring the rest. */
  isCut?: boolean;
  /** Opens a long change without a press of its button. */
  isOpen?: boolean;
  load?: () => void;
  onWhole?: () => void;
}) {
  const lines = useMemo(() => parseDiff(visibleLines(diff)), [diff]);
  const wanted = useSignal(false);
  const isWanted = wanted.value || isOpen;
  const isFolded = isCut || (!isWanted && lines.length > maxLines);
  useEffect(() => {
    if (isWanted && isCut) load?.();
  }, [isWanted, isCut]);
  return (
    <figure class="diff">
      <figcaption>
        <span class="added">+{counts.additions}</span> <span class="removed">−{counts.deletions}</span>{" "}
        <span class="unseen">lines added and removed</span>
      </figcaption>
      <LongText
        lines={isFolded ? lines.slice(0, headLines) : lines}
        label={`${isFolded ? "Beginning of the change" : "Change"}${of && ` of ${of}`}`}
        onWhole={isFolded ? undefined : onWhole}
        line={(line, i) => <Line key={i} line={line} />}
      />
      {isFolded && (
        <p class="cut">
          <span>… {isCut ? "only the beginning is here" : `${lines.length - headLines} more lines`} …</span>{" "}
          <button type="button" onClick={() => (wanted.value = true)}>
            Show the whole change
          </button>
        </p>
      )}
    </figure>
  );
}
function Line({ line: { kind, text, before, after } }: { line: DiffLine }) {
  return (
    <div class={`diff-line ${kind}`}>
      <span class="number" aria-hidden="true">
        {kind === "added" ? "" : before}
      </span>
      <span class="number" aria-hidden="true">
        {after}
      </span>
      <span class="sign">{signs[kind]}</span>
      <span class="text">{text}</span>
    </div>
  );
}

const signs: Readonly<Record<DiffLine["kind"], string>> = {
  file: "",
  hunk: "",
  note: "",
  same: " ",
  added: "+",
  removed: "-",
};
