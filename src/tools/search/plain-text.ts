/** Removes the tags of a piece of HTML and decodes its entities. The result is untrusted text, not HTML. */
export function plainText(html: string): string {
  return html
    .replaceAll(/<[^>]{0,1000}>/g, "")
    .replaceAll(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(\w{2,8}));/gi, (whole, decimal, hex, name) => {
      if (name !== undefined) return entities[name] ?? whole;
      const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal);
      return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
    });
}

const entities: Readonly<Record<string, string>> = {
  ...{ lt: "<", gt: ">", amp: "&", quot: '"', apos: "'", nbsp: " " },
};
