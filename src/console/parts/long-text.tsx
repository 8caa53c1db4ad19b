import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

/** The lines of a block; the browser lays out only visible blocks. */
const blockLines = 200;

/** The lines that are added at once; more of them would make the page unresponsive. */
const pageLines = 20_000;

/** Shows any number of lines in full, page by page; long lines wrap. Calls `onWhole` once all of them are on the page. */
export function LongText<T>({
  lines,
  line,
  label,
  onWhole,
}: {
  lines: readonly T[];
  line: (line: T, index: number) => ComponentChildren;
  label: string;
  onWhole?: (() => void) | undefined;
}) {
  const shown = useSignal(pageLines);
  const count = Math.min(shown.value, lines.length);
  const isWhole = count === lines.length;
  useEffect(() => {
    if (isWhole) onWhole?.();
  }, [isWhole, lines]);
  const blocks = Array.from({ length: Math.ceil(count / blockLines) }, (_, i) => i * blockLines);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys
    <section class="long-text" tabIndex={0} aria-label={label}>
      {blocks.map((start) => (
        <div key={start} class="long-text-block">
          {lines.slice(start, Math.min(start + blockLines, count)).map((text, i) => line(text, start + i))}
        </div>
      ))}
      {!isWhole && (
        <p class="cut">
          {lines.length - count} more lines.{" "}
          <button type="button" onClick={() => (shown.value += pageLines)}>
            Show the next {Math.min(pageLines, lines.length - count)}
          </button>
        </p>
      )}
    </section>
  );
}

/** Preformatted text with a maximum height. */
export function Pre({ text, look = "" }: { text: string; look?: string }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys
    <pre class={`scrolls ${look}`} tabIndex={0}>
      {text}
    </pre>
  );
}
