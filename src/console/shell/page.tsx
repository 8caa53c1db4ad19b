import type { ComponentChildren } from "preact";
import type { AskFeed } from "../inbox/ask-feed.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Route } from "./route.ts";

/** What every page gets. */
export interface PageProps {
  connection: ConsoleConnection;
  feed: AskFeed;
  route: Route;
}

/** Says in the middle of a page why nothing is there. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      <p>{children}</p>
    </div>
  );
}
