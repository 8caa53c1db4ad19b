import { useMemo } from "preact/hooks";
import { type DiffLine, parseDiff } from "./diff.ts";
import { LongText } from "./long-text.tsx";
import { visibleLines } from "./visible-text.ts";

/** A unified diff with line numbers and colours; `counts` are those of the whole change, of which `diff` may be the beginning. */
export function DiffView({
  diff,
  counts,
  onWhole,
}: {
  diff: string;
  counts: { additions: number; deletions: number };
  onWhole?: (() => void) | undefined;
}) {
  const lines = useMemo(() => parseDiff(visibleLines(diff)), [diff]);
  return (
    <figure class="diff">
      <figcaption>
        <span class="added">+{counts.additions}</span> <span class="removed">−{counts.deletions}</span>{" "}
        <span class="unseen">lines added and removed</span>
      </figcaption>
      <LongText lines={lines} label="Change" onWhole={onWhole} line={(line, i) => <Line key={i} line={line} />} />
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
