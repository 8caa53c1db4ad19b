import { randomBytes } from "node:crypto";
import { visible } from "../core/visible.ts";

/**
 * Fences untrusted text for a model: the lines around it carry a random name, which the text cannot know, and what looks like
 * such a line inside it is escaped. Hidden characters become `\u{…}`; unusual spaces and line ends become usual ones. `label`
 * names the source, and may be untrusted too.
 */
export function fence(label: string, text: string): string {
  const name = `untrusted-${randomBytes(8).toString("hex")}`;
  const source = visible(usualSpaces(label).replaceAll(/\s+/g, " ")).replaceAll(
    /[<>"&]/g,
    (found) => entities[found] ?? "",
  );
  return `<${name} source="${source}">\n${visible(usualSpaces(text)).replaceAll(markLike, "&lt;")}\n</${name}>`;
}

const entities: Readonly<Record<string, string>> = { "<": "&lt;", ">": "&gt;", '"': "&quot;", "&": "&amp;" };

const markLike = /<(?=[\s/]*untrusted)/gi;

const usualSpaces = (text: string) => text.replaceAll(/\r\n?|[\u2028\u2029\u0085]/g, "\n").replaceAll(/\p{Zs}/gu, " ");
