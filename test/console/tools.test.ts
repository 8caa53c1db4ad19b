import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { BrowserContextOptions } from "playwright-core";
import { beforeAll, describe, expect, test } from "vitest";
import { connect } from "../e2e/clients.ts";
import { answer, useBrowsers } from "./browser.ts";
import { findings, sticksOut } from "./findings.ts";
import { useServiceOn } from "./stores.ts";

const browsers = useBrowsers();

describe("the tools pages", () => {
  const service = useServiceOn("SQLite");

  /** A tool with every kind of input; it returns its input. */
  const shape = `
import { tool } from "@opencode-ai/plugin";
const z = tool.schema;
export default tool({
  description: "Returns what it is given. The second sentence is for the page of the tool only.",
  args: {
    name: z.string().min(2).describe("Who it is for"),
    count: z.number().int().min(1).max(9).default(3).describe("How many"),
    loud: z.boolean(),
    colour: z.enum(["red", "green"]).optional(),
    tags: z.array(z.string()).optional(),
    place: z.object({ street: z.string(), number: z.number().optional() }).optional(),
    any: z.any().optional(),
  },
  async execute(input) {
    return JSON.stringify(input);
  },
});
`;

  beforeAll(async () => {
    const folder = join(dirname(service().config), "tools");
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, "shape.ts"), shape);
    await writeFile(join(folder, "broken.ts"), "export default { description: ");
  });

  test("tools are listed with their purpose, and files that failed to load with the reason", async () => {
    const page = await browsers.open(service(), "approver", { path: "/tools" });
    const row = page.getByRole("link", { name: /^shape / });
    expect(await row.innerText()).toContain("Returns what it is given.");
    expect(await row.innerText()).not.toContain("second sentence");
    await page
      .getByText(/broken\.ts/)
      .first()
      .waitFor();
    await row.click();
    const tool = page.getByRole("article");
    await tool.getByText("Who it is for").first().waitFor();
    expect(await tool.locator(".schema > li").first().innerText()).toContain(
      "name text · at least 2 characters · required",
    );
    await page.getByLabel(/^Agent/).selectOption("explore");
    await page.getByRole("link", { name: /^write / }).waitFor({ state: "detached" });
    await page.getByRole("link", { name: /^read / }).waitFor();
  });

  test("a form from the schema calls the tool with exactly the input that was filled in", async () => {
    const page = await browsers.open(service(), "admin", { path: "/tools/shape" });
    await page.getByLabel(/^Agent/).selectOption("free");
    const form = page.locator(".input-form");
    await form.getByLabel("name", { exact: false }).first().fill("Ada");
    await form.getByLabel("count").fill("5");
    await form.getByLabel("loud").check();
    await form.getByLabel("colour").selectOption("green");
    await form.getByRole("button", { name: "Add tags" }).click();
    await form.getByRole("button", { name: "Add to tags" }).click();
    await form.getByLabel("tags 1").fill("first");
    await form.getByRole("button", { name: "Add to tags" }).click();
    await form.getByLabel("tags 2").fill("second");
    await form.getByRole("button", { name: "Remove tags 1" }).click();
    await form.getByRole("button", { name: "Add place" }).click();
    await form.getByLabel("street").fill("Main");
    await form.getByLabel("number number").fill("1.05");
    await form.getByLabel("any").fill('{"deep": [1, null]}');
    await form.getByRole("button", { name: "Call shape" }).click();
    await page.locator(".call .state-word").getByText("completed").waitFor();
    const sessionId = await page.locator(".by-hand .hint a").innerText();
    const { parts } = await connect(service(), "admin").tools.listToolParts({ sessionId });
    expect(parts.map(({ state }) => state.value?.input)).toEqual([
      {
        name: "Ada",
        count: 5,
        loud: true,
        colour: "green",
        tags: ["second"],
        place: { street: "Main", number: 1.05 },
        any: { deep: [1, null] },
      },
    ]);
  });

  test("a problem of a field is shown at the field, which gets the focus", async () => {
    const page = await browsers.open(service(), "admin", { path: "/tools/shape" });
    await page.getByLabel(/^Agent/).selectOption("free");
    const form = page.locator(".input-form");
    await form.getByLabel("count").fill("12");
    await form.getByRole("button", { name: "Call shape" }).click();
    const name = form.getByRole("textbox", { name: /^name/ });
    await form.locator("textarea[aria-invalid=true]").waitFor();
    await expect.poll(() => name.evaluate((field) => field === field.ownerDocument.activeElement)).toBe(true);
    await expect
      .poll(() => form.locator(".problem:not(:empty)").allInnerTexts())
      .toEqual([expect.stringContaining("fewer than 2 characters"), expect.stringContaining("<= 9")]);
    await name.fill("Ada");
    await form.getByLabel("count").fill("nine");
    await form.getByRole("button", { name: "Call shape" }).click();
    await expect.poll(() => form.locator("input:invalid").evaluateAll(messages)).toEqual(["Enter a number."]);
  });

  test("the input can be edited as JSON and returns to the fields", async () => {
    const page = await browsers.open(service(), "admin", { path: "/tools/shape" });
    const form = page.locator(".input-form");
    await form.getByRole("textbox", { name: /^name/ }).fill("Ada");
    await form.getByRole("button", { name: "Edit as JSON" }).click();
    const json = form.getByLabel("Input as JSON");
    expect(JSON.parse(await json.inputValue())).toEqual({ name: "Ada", loud: false });
    await json.fill('{"name": "Bob", "place": {"street": "Main"}, "extra": 1}');
    await form.getByRole("button", { name: "Edit as form" }).click();
    await expect.poll(() => form.getByRole("textbox", { name: /^name/ }).inputValue()).toBe("Bob");
    await expect.poll(() => form.getByLabel("street").inputValue()).toBe("Main");
    await page
      .getByText(`toolgate call shape '{"name":"Bob","place":{"street":"Main"},"extra":1}' --agent build`)
      .waitFor();
  });

  test("a call that asks is shown as waiting, links to the request, and continues after the answer", async () => {
    const page = await browsers.open(service(), "caller", { path: "/tools/bash" });
    const other = await browsers.open(service(), "approver");
    await page.locator(".input-form").getByLabel("command").fill("echo by hand");
    await page.getByRole("button", { name: "What would happen?" }).click();
    await page.getByText("Only if someone approves it.").waitFor();
    await page.getByRole("button", { name: "Call bash" }).click();
    await page.getByRole("link", { name: "Open the request" }).waitFor();
    await answer(other, /Approve once/);
    await page.locator(".call .state-word").getByText("completed").waitFor();
    await page.locator(".call").getByText("by hand").last().waitFor();
  });

  test("an approver cannot call tools: the page says why and still plans the call", async () => {
    const page = await browsers.open(service(), "approver", { path: "/tools/bash" });
    await page.getByText("You are signed in as approver, with the role approver.").waitFor();
    expect(await page.getByRole("button", { name: "Call bash" }).count()).toBe(0);
    await page.locator(".input-form").getByLabel("command").fill("ls");
    await page.getByRole("button", { name: "What would happen?" }).click();
    await page.getByRole("status", { name: "What would happen" }).waitFor();
    const watching = await browsers.open(service(), "watcher", { path: "/tools/bash" });
    await watching.getByText("You are signed in as watcher, with the role watcher.").waitFor();
    expect(await watching.getByRole("button", { name: /Call|happen/ }).count()).toBe(0);
  });

  const messages = (fields: readonly { validationMessage?: string }[]) =>
    fields.map(({ validationMessage }) => validationMessage);

  const looks: readonly BrowserContextOptions[] = [
    { colorScheme: "light" },
    { colorScheme: "dark", viewport: { width: 375, height: 700 } },
  ];

  test("with every kind of field open, axe finds nothing serious and nothing exceeds the width", async () => {
    for (const look of looks) {
      const page = await browsers.open(service(), "admin", { path: "/tools/shape", ...look });
      const form = page.locator(".input-form");
      await form.getByRole("button", { name: "Add tags" }).click();
      await form.getByRole("button", { name: "Add to tags" }).click();
      await form.getByRole("button", { name: "Add place" }).click();
      await form.getByRole("textbox", { name: /^name/ }).fill("x".repeat(300));
      await page.getByText("JSON Schema").click();
      expect(await findings(page)).toEqual([]);
      expect(await sticksOut(page)).toBe(0);
    }
  });
});
