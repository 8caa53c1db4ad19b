import { useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { useEffect } from "preact/hooks";
import { Empty, type PageProps } from "./page.tsx";

/** A page that is loaded when it is first shown, so that the inbox does not wait for it. */
export function lazyPage(load: () => Promise<FunctionComponent<PageProps>>): FunctionComponent<PageProps> {
  return function LazyPage(props: PageProps) {
    const page = useSignal<{ Page?: FunctionComponent<PageProps>; problem?: string }>({});
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
