import type { ComponentChildren } from "preact";
import type { AskFeed } from "../inbox/ask-feed.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Route } from "./route.ts";

/** The properties of every page. */
export interface PageProps {
  connection: ConsoleConnection;
  feed: AskFeed;
  route: Route;
}

/** Explains in the middle of a page why it is empty. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      <p>{children}</p>
    </div>
  );
}

/** Announces a problem; nothing without one. */
export function ProblemText({ text }: { text: string }) {
  return text === "" ? null : (
    <p class="problem" role="alert">
      {text}
    </p>
  );
}
