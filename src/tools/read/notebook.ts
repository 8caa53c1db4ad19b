import { stripVTControlCharacters } from "node:util";
import * as z from "zod";

/** Renders a Jupyter notebook as text: its cells with their output; undefined if it is not a notebook. */
export function notebookText(json: string): string | undefined {
  const notebook = parse(json);
  return notebook?.cells.map((cell, index) => cellText(cell, index + 1)).join("\n");
}

/** Returns the source of a cell; empty if there is none with that id. */
export function cellSource(json: string, id: string | undefined): string {
  return parse(json)?.cells.find((cell) => cell.id === id)?.source ?? "";
}

function parse(json: string) {
  try {
    return notebookSchema.parse(JSON.parse(json));
  } catch {
    return undefined;
  }
}

/** Schema of a text, stored whole or as lines. */
const text = z.union([z.string(), z.array(z.string()).transform((lines) => lines.join(""))]);

const output = z.object({
  output_type: z.string(),
  /** Text of a stream. */
  text: text.optional(),
  /** Data of a result, by MIME type. */
  data: z.record(z.string(), z.unknown()).optional(),
  /** Lines of an error. */
  traceback: z.array(z.string()).optional(),
});

const cell = z.object({
  id: z.string().optional(),
  cell_type: z.string(),
  source: text,
  outputs: z.array(output).optional(),
});

const notebookSchema = z.object({ nbformat: z.int(), cells: z.array(cell) });

function cellText({ cell_type, source, outputs = [] }: z.output<typeof cell>, number: number): string {
  const printed = outputs.map(outputText).filter((shown) => shown !== "");
  return [
    `--- cell ${number} (${cell_type}) ---`,
    source,
    ...(printed.length > 0 ? [`--- output of cell ${number} ---`, ...printed] : []),
    "",
  ].join("\n");
}

function outputText({ text: printed, data = {}, traceback }: z.output<typeof output>): string {
  if (printed !== undefined) return printed.trimEnd();
  // Tracebacks are coloured for terminals.
  if (traceback) return stripVTControlCharacters(traceback.join("\n"));
  const plain = text.safeParse(data["text/plain"]);
  const others = Object.keys(data).filter((mime) => mime !== "text/plain");
  return [...(plain.success ? [plain.data] : []), ...others.map((mime) => `(${mime})`)].join("\n");
}
