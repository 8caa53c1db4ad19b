declare module "@joplin/turndown-plugin-gfm" {
  /** Adds tables, strikethrough and task lists. */
  export function gfm(service: import("turndown")): void;
}
