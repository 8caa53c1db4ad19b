import type { ComponentChildren } from "preact";

/** The lines of a block; the browser lays out only visible blocks. */
const blockLines = 200;

/** Shows any number of lines in full; long lines wrap. */
export function LongText<T>({
  lines,
  line,
  label,
}: {
  lines: readonly T[];
  line: (line: T, index: number) => ComponentChildren;
  label: string;
}) {
  const blocks = Array.from({ length: Math.ceil(lines.length / blockLines) }, (_, i) => i * blockLines);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys
    <section class="long-text" tabIndex={0} aria-label={label}>
      {blocks.map((start) => (
        <div key={start} class="long-text-block">
          {lines.slice(start, start + blockLines).map((text, i) => line(text, start + i))}
        </div>
      ))}
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
