/** `npm run generate`: writes the lists of configuration keys into the pages that hold them. */
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { z } from "zod";
import { type ConfigKey, defaultOf, keysOf, withoutWrappers } from "../src/config/keys.ts";
import { configSchema } from "../src/config/schema.ts";

const keys = keysOf(configSchema);
/** Tables that have a page, by the beginning of their paths. */
const pages = { "mcp.NAME": "mcp-servers.md", "lsp.NAME": "code.md" };
const docs = join(import.meta.dirname, "../docs");

/** Returns the page with its list of keys as the schema has them. */
export function withKeyList(page: string, text: string): string {
  const list = page === "configuration.md" ? allKeys() : keysOfPage(page);
  return text.replace(/(?<=<!-- keys: .* -->\n)[\s\S]*(?=<!-- \/keys -->)/, () => `\n${list}\n\n`);
}

/** Lists the keys without a table first, then those of each table, in the order of the schema. */
function allKeys(): string {
  const own = keys.filter(({ path }) => pageOf(path) === undefined);
  const tables = Map.groupBy(own, ({ path }) => headerOf(path));
  const parts = [...tables].sort(([one], [other]) => Number(one !== "") - Number(other !== ""));
  const listed = new Map<string, string>();
  return parts
    .map(([header, inside]) => {
      const lines = linesOf(inside, header, listed).join("\n");
      return header === "" ? lines : `**\`${header}\`**\n\n${lines}`;
    })
    .join("\n\n");
}

/** Lists keys. One that an earlier table lists in the same words is named only; `listed` has the tables of those. */
function linesOf(inside: readonly ConfigKey[], header: string, listed: Map<string, string>): string[] {
  const lines = inside.map((key) => lineOf(key, "configuration.md"));
  const elsewhere = Map.groupBy(
    lines.filter((line) => listed.has(line)),
    (line) => listed.get(line),
  );
  const own = lines.filter((line) => !listed.has(line));
  for (const line of own) listed.set(line, header);
  const names = (same: readonly string[]) => same.map((line) => line.slice(2, line.indexOf(":"))).join(", ");
  return [...own, ...[...elsewhere].map(([other, same]) => `* as in \`${other}\`: ${names(same)}`)];
}

function keysOfPage(page: string): string {
  const own = keys.filter(({ path }) => pageOf(path) === page);
  return own.map((key) => lineOf(key, page)).join("\n");
}

function pageOf(path: readonly string[]): string | undefined {
  return Object.entries(pages).find(([start]) => path.join(".").startsWith(`${start}.`))?.[1];
}

/** Returns the header of a key's table as one would write it: `[limits]`, `[[token]]`, `[mcp.NAME]`. */
function headerOf(path: readonly string[]): string {
  const table = path.slice(0, -1);
  if (table.length === 0) return "";
  return table.at(-1) === "[]" ? `[[${table.slice(0, -1).join(".")}]]` : `[${table.join(".")}]`;
}

/** Returns a key as an entry of a list: name, option and variable, type, default, meaning. The name leads to the section that says more. */
function lineOf(key: ConfigKey, page: string): string {
  const name = code(key.path.at(-1) ?? "");
  const others = [key.flag?.replace(/ .*/, ""), key.variable].filter((other) => other !== undefined).map(code);
  const linked = key.see === undefined ? name : `[${name}](${placeOf(key.see, page)})`;
  const standard = defaultOf(key);
  const type = typeOf(key);
  // A text, and a boolean that is false, are what the page says of a key without type or default.
  const facts = [
    ...(type === "text" ? [] : [type]),
    ...(standard === undefined || (type === "boolean" && standard === code("false")) ? [] : [`default ${standard}`]),
  ];
  const start = facts.length === 0 ? "" : `${facts.join(", ")}. `;
  return `* ${[linked, ...others].join(", ")}: ${start}${sentence(key.help)}`;
}

const code = (text: string) => `\`${text}\``;
const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** Returns the type of a key, in words, with its bounds and its unit. */
function typeOf({ schema, path, unit }: ConfigKey): string {
  const bare = withoutWrappers(schema);
  if (bare instanceof z.ZodBoolean) return "boolean";
  if (bare instanceof z.ZodEnum) return bare.options.map((option) => `\`${option}\``).join(", ");
  if (bare instanceof z.ZodArray) return "list";
  if (bare instanceof z.ZodRecord || bare instanceof z.ZodUnknown) return "table";
  if (bare instanceof z.ZodUnion) return typeOf({ schema: bare.options[0] as z.ZodType, path, help: "" });
  if (!(bare instanceof z.ZodNumber)) return "text";
  const [, named] = /(?:^|_)(ms|bytes|hours)$/.exec(path.at(-1) ?? "") ?? [];
  const range = [bare.minValue, bare.maxValue].map((bound) => (bound ?? 0).toLocaleString("en-US")).join("–");
  return [range, unit ?? named].filter((word) => word !== undefined).join(" ");
}

function placeOf(see: string, page: string): string {
  const [file = "", section] = see.split("#");
  const place = file === page ? "" : relative(dirname(page), file);
  return `${place}${section === undefined ? "" : `#${section}`}`;
}

if (import.meta.main)
  for (const page of ["configuration.md", ...Object.values(pages)]) {
    const file = join(docs, page);
    writeFileSync(file, withKeyList(page, readFileSync(file, "utf8")));
  }
