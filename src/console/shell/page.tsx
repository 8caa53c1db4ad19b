import { useSignal } from "@preact/signals";
import type { ComponentChildren, FunctionComponent } from "preact";
import { useEffect } from "preact/hooks";
import type { AskFeed } from "../inbox/ask-feed.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Loaded } from "./load.ts";
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

/** A page with a list, and a button that loads it again. */
export function ListPage({
  title,
  list: { value, problem, reload },
  failure = "",
  children,
}: {
  title: string;
  list: Loaded<unknown>;
  /** The reason why a press on it failed. */
  failure?: string;
  children: ComponentChildren;
}) {
  return (
    <section class="page" aria-busy={value === undefined && problem === ""}>
      <h1>{title}</h1>
      <div class="actions">
        <button type="button" class="quiet" onClick={reload}>
          Refresh
        </button>
      </div>
      <ProblemText text={failure || problem} />
      {children}
    </section>
  );
}

/** A page or form that is loaded when it is first shown, so that the inbox does not wait for it. */
export function lazyPage<Props extends object = PageProps>(
  load: () => Promise<FunctionComponent<Props>>,
): FunctionComponent<Props> {
  return function LazyPage(props: Props) {
    const page = useSignal<{ Page?: FunctionComponent<Props>; problem?: string }>({});
    useEffect(() => {
      load().then(
        (Page) => {
          page.value = { Page };
        },
        (error: unknown) => {
          page.value = { problem: String(error) };
        },
      );
    }, []);
    const { Page, problem } = page.value;
    if (Page !== undefined) return <Page {...props} />;
    if (problem === undefined) return <p class="unseen">Loading…</p>;
    return <Empty title="This page could not be loaded">{problem} Reload the page to try again.</Empty>;
  };
}
