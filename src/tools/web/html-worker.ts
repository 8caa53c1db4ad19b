import { parentPort } from "node:worker_threads";
import { gfm } from "@joplin/turndown-plugin-gfm";
import TurndownService from "turndown";

/** A page to convert. */
interface Page {
  html: string;
  format: "markdown" | "text";
}

// Worker of `convertHtml`: posts a message when it is ready, then converts one page and posts the text.
parentPort?.once("message", (page: Page) => parentPort?.postMessage(convert(page)));
parentPort?.postMessage("ready");

const hidden = [
  "script",
  "style",
  "noscript",
  "meta",
  "link",
  "iframe",
  "object",
  "embed",
  "template",
  "title",
] as const;

function convert({ html, format }: Page): string {
  const service = new TurndownService({
    headingStyle: "atx",
    hr: "---",
    bulletListMarker: "-",
    codeBlockStyle: "fenced",
    emDelimiter: "*",
  });
  service.remove([...hidden]);
  if (format === "markdown") service.use(gfm);
  else {
    const isHidden = new Set<string>(hidden.map((name) => name.toUpperCase()));
    service.escape = (text) => text;
    service.addRule("text", {
      filter: (node) => !isHidden.has(node.nodeName),
      replacement: (content, node) => {
        if (node.nodeName === "BR") return "\n";
        return "isBlock" in node && node.isBlock ? `\n\n${content}\n\n` : content;
      },
    });
  }
  return service.turndown(html);
}
