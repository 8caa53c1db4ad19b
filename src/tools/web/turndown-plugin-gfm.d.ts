declare module "@joplin/turndown-plugin-gfm" {
  /** Tables, strikethrough and task lists. */
  export function gfm(service: import("turndown")): void;
}
