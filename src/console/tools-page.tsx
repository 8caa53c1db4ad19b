import { lazyPage } from "./lazy-page.tsx";

/** What agents can call, and a way to call it by hand. */
export const ToolsPage = lazyPage(async () => (await import("./later-pages.ts")).Tools);
