import { lazyPage } from "./lazy-page.tsx";

/** What is allowed, asked and denied, and why. */
export const PolicyPage = lazyPage(async () => (await import("./later-pages.ts")).Policy);
