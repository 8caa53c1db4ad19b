/** `npm run generate`: writes the tables of configuration keys into the pages that hold them. */
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { z } from "zod";
import { type ConfigKey, defaultOf, keysOf, withoutWrappers } from "../src/config/keys.ts";
import { configSchema } from "../src/config/schema.ts";

const keys = keysOf(configSchema);
/** Tables that have a page, by the beginning of their paths. */
const pages = { "mcp.NAME": "mcp-servers.md", "lsp.NAME": "code.md" };
const docs = join(import.meta.dirname, "../docs");

/** Returns the page with its table of keys as the schema has them. */
export function withKeyTable(page: string, text: string): string {
  const table = page === "configuration.md" ? allKeys() : keysOfPage(page);
  return text.replace(/(?<=<!-- keys: .* -->\n\n)(?:\|.*\n)+/, () => `${table.join("\n")}\n`);
}

function allKeys(): string[] {
  const own = keys.filter(({ path }) => pageOf(path) === undefined);
  const rows = own.map((key) => {
    const option = [key.flag?.replace(/ .*/, ""), key.variable].flatMap((name) => (name ? [`\`${name}\``] : []));
    return [nameOf(key.path), option.join(", "), typeOf(key), defaultOf(key) ?? "", meaningOf(key, "configuration.md")];
  });
  return tableOf(["key in `toolgate.toml`", "flag, variable", "type", "default", "meaning"], rows);
}

function keysOfPage(page: string): string[] {
  const own = keys.filter(({ path }) => pageOf(path) === page);
  const rows = own.map((key) => {
    return [`\`${key.path.at(-1)}\``, typeOf(key), defaultOf(key) ?? "", meaningOf(key, page)];
  });
  return tableOf(["key", "type", "default", "meaning"], rows);
}

function pageOf(path: readonly string[]): string | undefined {
  return Object.entries(pages).find(([start]) => path.join(".").startsWith(`${start}.`))?.[1];
}

/** Returns a key as one would write it: `[limits] open_asks`, `[[token]] id`, `[mcp.NAME] command`. */
function nameOf(path: readonly string[]): string {
  const table = path.slice(0, -1);
  if (table.length === 0) return `\`${path.at(-1)}\``;
  const header = table.at(-1) === "[]" ? `[[${table.slice(0, -1).join(".")}]]` : `[${table.join(".")}]`;
  return `\`${header}\` \`${path.at(-1)}\``;
}

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
  const range = [bare.minValue, bare.maxValue].map((bound) => (bound ?? 0).toLocaleString("en-US")).join(" to ");
  return [range, unit ?? named].filter((word) => word !== undefined).join(" ");
}

/** Returns the meaning of a key, with a link to the section that says more. */
function meaningOf({ help, see }: ConfigKey, page: string): string {
  if (see === undefined) return help;
  const [file = "", section] = see.split("#");
  const place = file === page ? "" : relative(dirname(page), file);
  const title =
    section?.replaceAll("-", " ") ?? readFileSync(join(docs, file), "utf8").split("\n", 1)[0]?.slice(2) ?? file;
  return `${help} ([${title}](${place}${section === undefined ? "" : `#${section}`}))`;
}

function tableOf(head: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map(() => "---")), ...rows.map(line)];
}

if (import.meta.main)
  for (const page of ["configuration.md", ...Object.values(pages)]) {
    const file = join(docs, page);
    writeFileSync(file, withKeyTable(page, readFileSync(file, "utf8")));
  }
