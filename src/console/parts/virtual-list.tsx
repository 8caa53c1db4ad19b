import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Rows that are rendered above and below the visible ones, for fast scrolling. */
const spare = 6;

/** A list of rows of equal height that renders only the visible rows. */
export function VirtualList<T>({
  items,
  rowHeight,
  label,
  keyOf,
  row,
  current = -1,
  follow = false,
  onScrolledBack,
  focusable = false,
}: {
  items: readonly T[];
  rowHeight: number;
  label: string;
  keyOf: (item: T, index: number) => string | number;
  row: (item: T, index: number) => ComponentChildren;
  /** The row to keep visible; -1 for none. */
  current?: number;
  /** Stays at the end as rows are added. */
  follow?: boolean;
  /** Called when the reader scrolls away from the end (false) or back to it (true). */
  onScrolledBack?: (atEnd: boolean) => void;
  /** Makes the list itself focusable, so that keys scroll it; lists of links do not need that. */
  focusable?: boolean;
}) {
  const box = useRef<HTMLElement>(null);
  const top = useSignal(0);
  const height = useSignal(0);

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    const measure = new ResizeObserver(() => {
      height.value = element.clientHeight;
    });
    measure.observe(element);
    height.value = element.clientHeight;
    return () => measure.disconnect();
  }, []);

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null || current < 0) return;
    const [start, end] = [current * rowHeight, (current + 1) * rowHeight];
    if (start < element.scrollTop) element.scrollTop = start;
    else if (end > element.scrollTop + element.clientHeight) element.scrollTop = end - element.clientHeight;
  }, [current, rowHeight]);

  useLayoutEffect(() => {
    const element = box.current;
    if (element === null || !follow) return;
    element.scrollTop = element.scrollHeight;
    top.value = element.scrollTop;
  }, [follow, items, height.value]);

  const first = Math.max(0, Math.floor(top.value / rowHeight) - spare);
  const last = Math.min(items.length, Math.ceil((top.value + height.value) / rowHeight) + spare);
  return (
    <section
      ref={box}
      class="virtual"
      tabIndex={focusable ? 0 : undefined}
      aria-label={focusable ? label : undefined}
      onScroll={({ currentTarget }) => {
        top.value = currentTarget.scrollTop;
        const left = currentTarget.scrollHeight - currentTarget.clientHeight - currentTarget.scrollTop;
        onScrolledBack?.(left < rowHeight);
      }}
    >
      <ul aria-label={label} style={{ height: `${items.length * rowHeight}px` }}>
        {items.slice(first, last).map((item, i) => (
          <li
            key={keyOf(item, first + i)}
            aria-posinset={first + i + 1}
            aria-setsize={items.length}
            class="virtual-row"
            style={{ height: `${rowHeight}px`, transform: `translateY(${(first + i) * rowHeight}px)` }}
          >
            {row(item, first + i)}
          </li>
        ))}
      </ul>
    </section>
  );
}
