import { Empty, type PageProps } from "./page.tsx";

/** Tools. */
export function ToolsPage(_props: PageProps) {
  return <Empty title="Tools">This page is still to come.</Empty>;
}
