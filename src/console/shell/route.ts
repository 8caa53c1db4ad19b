import { type ReadonlySignal, signal } from "@preact/signals";

/** Where in the console one is: the page, and what is chosen on it. It is the fragment of the address: `#/sessions/ses_1`. */
export interface Route {
  readonly page: ReadonlySignal<string>;
  readonly chosen: ReadonlySignal<readonly string[]>;
  /** Goes there; with `replace` the browser's way back skips where one was. */
  go(path: string, options?: { replace?: boolean }): void;
}

/** Follows the address of this page. */
export function createRoute(): Route {
  const page = signal("");
  const chosen = signal<readonly string[]>([]);
  const read = () => {
    const [first = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodePart);
    page.value = first === "" ? "inbox" : first;
    if (rest.join("/") !== chosen.value.join("/")) chosen.value = rest;
  };
  read();
  addEventListener("hashchange", read);
  return {
    page,
    chosen,
    go(path, { replace = false } = {}) {
      if (replace) history.replaceState(null, "", `#${path}`);
      else location.hash = path;
      read();
    },
  };
}

/** The address of a place in the console. */
export function pathOf(...parts: readonly string[]): string {
  return `/${parts.map(encodeURIComponent).join("/")}`;
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
