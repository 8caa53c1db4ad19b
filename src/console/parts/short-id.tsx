import { visibleText } from "./visible-text.ts";

/** The beginning of an id; the whole of it is its title. */
export function ShortId({ id }: { id: string }) {
  const text = visibleText(id);
  return (
    <code title={text} class="short-id">
      {shortId(text)}
    </code>
  );
}

/** Shortens an id that has no meaning for a reader. */
export function shortId(id: string): string {
  return id.length > 16 ? `${id.slice(0, 12)}…` : id;
}
