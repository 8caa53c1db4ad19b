import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** What axe finds that is serious or worse, with where it is. */
export async function findings(page: Page): Promise<string[]> {
  // Its own way of running scripts is not the page's, so the page's policy lets it in.
  await page.evaluate(axe);
  const found = await page.evaluate<{ id: string; impact: string; nodes: { target: string[] }[] }[]>(
    "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations)",
  );
  return found
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`);
}

/** How much of a page is beyond its right edge, in pixels: a phone never scrolls sideways. */
export async function sticksOut(page: Page): Promise<number> {
  return await page.locator("main").evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth);
}
