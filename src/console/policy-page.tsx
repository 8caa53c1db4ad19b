import { Empty, type PageProps } from "./page.tsx";

/** Policy. */
export function PolicyPage(_props: PageProps) {
  return <Empty title="Policy">This page is still to come.</Empty>;
}
