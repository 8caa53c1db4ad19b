import { type ReadonlySignal, signal } from "@preact/signals";

/** The page and the selected item on it, stored in the fragment of the address: `#/sessions/ses_1`. */
export interface Route {
  readonly page: ReadonlySignal<string>;
  readonly chosen: ReadonlySignal<readonly string[]>;
  /** Navigates to a path; with `replace` the current history entry is replaced. */
  go(path: string, options?: { replace?: boolean }): void;
}

/** Creates the route and updates it from the address. */
export function createRoute(): Route {
  const page = signal("");
  const chosen = signal<readonly string[]>([]);
  const read = () => {
    const [first = "", ...rest] = location.hash
      // The former address of a request.
      .replace(/^#\/?inbox\/(?=.)/, "#/requests/")
      .replace(/^#\/?/, "")
      .split("/")
      .map(decodePart);
    if (first === "requests") history.replaceState(null, "", `#${pathOf(first, ...rest)}`);
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

/** Turns the link to a request, `/r/ID`, into the address of its page, and drops whatever else the link has. */
export function openLinkedRequest(): void {
  const [, id] = /^\/r\/(per_[\w-]+)$/.exec(location.pathname) ?? [];
  if (id !== undefined) history.replaceState(null, "", `/#${pathOf("requests", id)}`);
}

/** The path of a page and a selected item. */
export function pathOf(...parts: readonly string[]): string {
  return `/${parts.map(encodeURIComponent).join("/")}`;
}

/** Decodes a part of an address; what cannot be decoded stays as it is. */
export function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
