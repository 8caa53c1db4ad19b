import { lazyPage } from "./lazy-page.tsx";

/** What was called, how it went, and what it wrote. */
export const SessionsPage = lazyPage(async () => (await import("./later-pages.ts")).Sessions);
