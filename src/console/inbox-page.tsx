import { Empty, type PageProps } from "./page.tsx";

/** Inbox. */
export function InboxPage(_props: PageProps) {
  return <Empty title="Inbox">This page is still to come.</Empty>;
}
