import { visible } from "../../core/visible.ts";
import { fence } from "../../tool/fence.ts";
import { urlProblem } from "../web/exchange.ts";
import type { CodeResult, WebResult } from "./provider.ts";

/** Maximum size of one result. */
export const maxResultBytes = 8_192;
/** Maximum size of all results of a call; with the fences they fit into the output, so that no fence is cut off. */
export const maxResultsBytes = 45_000;

/** Results as the model sees them. */
export interface ShownResults {
  text: string;
  shown: number;
  /** The number of results that were left out, since their address is none of the web. */
  leftOut: number;
  /** True if a result was cut. */
  isCut: boolean;
}

/** Shows pages that were found, each in its own fence. */
export function showWebResults(results: readonly WebResult[], maxBytes: number): ShownResults {
  const usable = results.filter(({ url }) => url === undefined || urlProblem(url) === undefined);
  const shown = fenceEach(
    usable.map(({ url, title = "", published, content }) => {
      const name = oneLine(title).replaceAll(/[[\]]/g, "\\$&");
      return [
        ...(url === undefined ? [] : [`## [${name || "no title"}](${webAddress(url)})`]),
        ...(published === undefined ? [] : dateLine(published)),
        ...(url === undefined ? [] : [""]),
        content.replaceAll(/\n{3,}/g, "\n\n").trim(),
      ].join("\n");
    }),
    maxBytes,
  );
  return { ...shown, leftOut: results.length - usable.length };
}

/** Shows files that were found with their matching lines, each in its own fence. */
export function showCodeResults(results: readonly CodeResult[], maxBytes: number): ShownResults {
  const shown = fenceEach(
    results.map(({ repo, path, url, lines }) =>
      [
        oneLine(`${repo} ${path}`),
        ...(url === undefined || urlProblem(url) !== undefined ? [] : [webAddress(url)]),
        ...lines.map(({ number, text }) => `  ${number === undefined ? "" : `Line ${number}: `}${text.trimEnd()}`),
      ].join("\n"),
    ),
    maxBytes,
  );
  return { ...shown, leftOut: 0 };
}

/** Cuts texts to their share of the maximum, and fences each. */
export function fenceEach(texts: readonly string[], maxBytes: number): Omit<ShownResults, "leftOut"> {
  const share = Math.min(maxResultBytes, Math.floor(Math.min(maxBytes, maxResultsBytes) / Math.max(texts.length, 1)));
  let isCut = false;
  const fenced = texts.map((text, index) => {
    // Escaped before it is cut, since escapes are longer.
    const whole = Buffer.from(visible(text.replaceAll(/\p{Zs}/gu, " ").replaceAll(/\r\n?/g, "\n")));
    if (whole.length > share) isCut = true;
    return fence(`result ${index + 1} of ${texts.length}`, beginning(whole, share));
  });
  return { text: fenced.join("\n\n"), shown: texts.length, isCut };
}

/** Returns the first bytes of a text, without a part of a character at the end. */
function beginning(text: Buffer, maxBytes: number): string {
  if (text.length <= maxBytes) return text.toString();
  return `${new TextDecoder().decode(text.subarray(0, maxBytes), { stream: true })} …`;
}

/** Writes an address so that it ends where a Markdown link ends. */
const webAddress = (url: string) => new URL(url).href.replaceAll("(", "%28").replaceAll(")", "%29");

const oneLine = (text: string) => text.replaceAll(/\s+/g, " ").trim().slice(0, 500);

function dateLine(date: string): string[] {
  const time = Date.parse(date);
  return Number.isNaN(time) ? [] : [`Published: ${new Date(time).toISOString()}`];
}
