import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Returns the findings of axe with their locations. */
export async function findings(page: Page): Promise<string[]> {
  // In the middle of a transition a colour is neither that of before nor that of after.
  await page.emulateMedia({ reducedMotion: "reduce" });
  await page.evaluate(
    "Promise.allSettled(document.getAnimations().filter((each) => each instanceof CSSTransition).map(({ finished }) => finished)).then(() => undefined)",
  );
  // The browser evaluates this script itself, so the page's content policy does not block it.
  await page.evaluate(axe);
  const found = await page.evaluate<{ id: string; nodes: { target: string[] }[] }[]>(
    "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations)",
  );
  return found.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`);
}

/** Returns by how many pixels the page exceeds its width; a phone must not scroll sideways. */
export async function sticksOut(page: Page): Promise<number> {
  return await page.locator("main").evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth);
}
