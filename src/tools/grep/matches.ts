/** Maximum count of matches that are shown. */
export const maxMatches = 100;
/** File descriptor of the first searched file in ripgrep. */
export const firstDescriptor = 3;

/** Collects the matches of ripgrep in files that it knows by descriptor, up to the maximum. */
export function createMatches(names: readonly string[]) {
  const byFile = names.map((): { line: string; isMatch: boolean }[] => []);
  return {
    add(record: string): void {
      const [path = "", line] = record.split("\0", 2);
      const at = path.startsWith("/dev/fd/") ? Number(path.slice("/dev/fd/".length)) - firstDescriptor : 0;
      const [, number, sign, text] = /^(\d+)([:-])(.*)$/s.exec(line ?? "") ?? [];
      if (number === undefined) byFile.at(-1)?.push({ line: "  --", isMatch: false });
      else byFile[at]?.push({ line: `  Line ${number}${sign} ${text?.replace(/\r$/, "")}`, isMatch: sign === ":" });
    },
    count: () => byFile.flat().filter(({ isMatch }) => isMatch).length,
    /** Returns the lines, grouped under the name of each file. */
    lines(): string[] {
      let capacity = maxMatches;
      const shown: string[] = [];
      for (const [i, lines] of byFile.entries()) {
        const end = lines.findIndex(({ isMatch }) => isMatch && capacity-- <= 0);
        const selected = end === -1 ? lines : lines.slice(0, end);
        if (selected.length > 0)
          shown.push(...(shown.length > 0 ? [""] : []), `${names[i]}:`, ...selected.map(({ line }) => line));
      }
      return shown;
    },
  };
}
