import { Empty, type PageProps } from "./page.tsx";

/** Sessions. */
export function SessionsPage(_props: PageProps) {
  return <Empty title="Sessions">This page is still to come.</Empty>;
}
