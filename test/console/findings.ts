import axe from "axe-core";
import type { Page } from "playwright-core";
import { expect } from "vitest";

/** That axe finds nothing serious on a page as it is now, and that nothing sticks out to the right. */
export async function expectNoFindings(page: Page): Promise<void> {
  // The page's own policy lets no script in; what a debugger evaluates is none.
  await page.evaluate(axe.source);
  const { violations }: axe.AxeResults = await page.evaluate("axe.run({ resultTypes: ['violations'] })");
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  expect(serious.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" | ")}`)).toEqual([]);
  const main = page.locator("main");
  const [width, seen] = await main.evaluate(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth] as const);
  expect(width).toBeLessThanOrEqual(seen);
}
