import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { stripVTControlCharacters } from "node:util";

/** Runs the demo at a terminal and draws what it printed, as docs/images/demo.svg: each line appears when it did, and stays. */
const root = resolve(import.meta.dirname, "..");
const command = "npx toolgate demo --auto";

const font = { size: 14, width: 8.4, height: 23 };
const margin = { x: 22, top: 52, bottom: 18 };
const colours = { plain: "#c9d1d9", bold: "#f0f6fc", green: "#3fb950" };
/** Pauses between lines, in seconds: a real one that is longer or shorter is cut, so that the picture can be read. */
const pause = { min: 0.35, max: 1.1 };

/** A line of the terminal, with the time at which it was printed in seconds. */
interface Printed {
  text: string;
  at: number;
}

const printed = await record();
const plain = printed.map(({ text }) => stripVTControlCharacters(text));
if (plain.some((line) => /\/(?:tmp|home|root|work|Users)\b/.test(line)))
  throw new Error("a line names a path of this machine");
const lines: Printed[] = [{ text: `\x1b[32m$\x1b[39m \x1b[1m${command}\x1b[22m`, at: 0 }, ...printed];
writeFileSync(join(root, "docs/images/demo.svg"), draw(lines, Math.max(...plain.map(({ length }) => length))));

async function record(): Promise<Printed[]> {
  const program = `stty cols 120 rows 30; exec '${process.execPath}' '${join(root, "bin/toolgate.js")}' demo --auto`;
  const { NO_COLOR: _, ...env } = process.env;
  const child = spawn("script", ["-qefc", program, "/dev/null"], {
    env: { ...env, TERM: "xterm-256color", SHELL: "/bin/sh" },
  });
  const started = performance.now();
  const found: Printed[] = [];
  let rest = "";
  child.stdout.setEncoding("utf8").on("data", (piece: string) => {
    const [last = "", ...whole] = `${rest}${piece}`.split(/\r?\n/).toReversed();
    rest = last;
    for (const text of whole.toReversed()) found.push({ text, at: (performance.now() - started) / 1_000 });
  });
  const [code] = await once(child, "close");
  if (code !== 0) throw new Error(`the demo ended with ${code}:\n${found.map(({ text }) => text).join("\n")}`);
  return found;
}

function draw(all: readonly Printed[], columns: number): string {
  const width = Math.ceil(columns * font.width + 2 * margin.x);
  const height = margin.top + all.length * font.height + margin.bottom;
  let shownAt = 0;
  const rows = all.map(({ text, at }, i) => {
    const gap = at - (all[i - 1]?.at ?? 0);
    if (i > 0 && text !== "") shownAt += Math.min(Math.max(gap, pause.min), pause.max);
    const y = margin.top + (i + 0.7) * font.height;
    const runs = runsOf(text).map((run) => textElement(run, y));
    return runs.length === 0 ? "" : `<g style="animation-delay:${shownAt.toFixed(2)}s">${runs.join("")}</g>\n`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">
<title>The demo: seven promises, each with what showed it</title>
<style>
text { font: ${font.size}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
g { animation: appear .25s both }
@keyframes appear { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { g { animation: none } }
</style>
<rect x=".5" y=".5" width="${width - 1}" height="${height - 1}" rx="10" fill="#0d1117" stroke="#30363d"/>
${[0, 1, 2].map((i) => `<circle cx="${margin.x + 5 + i * 20}" cy="24" r="6" fill="${["#ff5f57", "#febc2e", "#28c840"][i]}"/>`).join("")}
${rows.join("")}</svg>
`;
}

/** Adjacent characters of a line that look alike. */
interface Run {
  text: string;
  column: number;
  colour: string;
  isBold: boolean;
}

/** Splits a line at the codes that change colour or weight, and where columns are apart. */
function runsOf(line: string): Run[] {
  const runs: Run[] = [];
  let [column, colour, isBold] = [0, colours.plain, false];
  for (const [i, part] of line.split("\x1b[").entries()) {
    const [, code, piece = ""] = i === 0 ? ["", "", part] : (/^(\d*)m(.*)$/.exec(part) ?? []);
    if (code === "1" || code === "22") isBold = code === "1";
    if (code === "32" || code === "39") colour = code === "32" ? colours.green : colours.plain;
    for (const { 0: text, index } of piece.matchAll(/\S+(?: \S+)*/g))
      runs.push({ text, column: column + index, colour: isBold ? colours.bold : colour, isBold });
    column += piece.length;
  }
  return runs;
}

/** Sets a run at its column; the length is fixed, so that columns are straight in any font. */
function textElement({ text, column, colour, isBold }: Run, y: number): string {
  const escaped = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const place = `x="${(margin.x + column * font.width).toFixed(1)}" y="${y.toFixed(1)}" textLength="${(text.length * font.width).toFixed(1)}"`;
  return `<text ${place} fill="${colour}"${isBold ? ' font-weight="600"' : ""}>${escaped}</text>`;
}
