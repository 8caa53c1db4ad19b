import { parentPort, workerData } from "node:worker_threads";
import { gfm } from "@joplin/turndown-plugin-gfm";
import TurndownService from "turndown";

// Worker of `convertHtml`: converts one page and posts the text.
const { html, format }: { html: string; format: "markdown" | "text" } = workerData;

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
parentPort?.postMessage(service.turndown(html));
