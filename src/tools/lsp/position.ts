import * as z from "zod";
import { filePath } from "../../tool/workspace.ts";
import { codeActionKinds } from "./code-actions.ts";

/** Input fields of a position in a file. */
export const positionFields = {
  line: z.int().min(1).describe("Line, counted from 1"),
  column: z.int().min(1).optional().describe("Column, counted from 1; give either column or character"),
  character: z.int().min(0).optional().describe("Column, counted from 0 as language servers do"),
};

/** A column in the input of a tool. */
interface WrittenColumn {
  column?: number | undefined;
  character?: number | undefined;
}

/** Reports whether a position has exactly one of both columns, since a number alone cannot say its base. */
export const hasOneColumn = ({ column, character }: WrittenColumn) =>
  (column === undefined) !== (character === undefined);

/** Error for a position with none or both. */
export const oneColumn = {
  error: "Give exactly one of column (counted from 1) and character (counted from 0).",
  path: ["column"],
};

/** Input of a question about a position in a file. */
export const positionInput = z
  .object({ filePath: filePath.describe("File in the workspace"), ...positionFields })
  .refine(hasOneColumn, oneColumn);

/** Converts a position in the input to one of the protocol: both counted from 0, columns in UTF-16 code units. */
export function protocolPosition({ line, column, character = 0 }: WrittenColumn & { line: number }) {
  return { line: line - 1, character: column === undefined ? character : column - 1 };
}

/** Input fields of a range in a file, with the kind of actions that are wanted for it. */
export const rangeFields = {
  filePath: filePath.describe("File in the workspace"),
  startLine: z.int().min(1).describe("First line, counted from 1"),
  startColumn: z
    .int()
    .min(1)
    .optional()
    .describe("Column of the start, counted from 1; give either it or startCharacter"),
  startCharacter: z.int().min(0).optional().describe("Column of the start, counted from 0"),
  endLine: z.int().min(1).describe("Last line, counted from 1"),
  endColumn: z
    .int()
    .min(1)
    .optional()
    .describe("Column behind the end, counted from 1; give either it or endCharacter"),
  endCharacter: z.int().min(0).optional().describe("Column behind the end, counted from 0"),
  kind: z.enum(codeActionKinds).optional().describe("The only kind of actions"),
};

/** A range in the input of a tool. */
interface WrittenRange {
  startLine: number;
  startColumn?: number | undefined;
  startCharacter?: number | undefined;
  endLine: number;
  endColumn?: number | undefined;
  endCharacter?: number | undefined;
}

/** Reports whether both ends of a range have exactly one of both columns. */
export function hasRangeColumns({ startColumn, startCharacter, endColumn, endCharacter }: WrittenRange): boolean {
  return (
    hasOneColumn({ column: startColumn, character: startCharacter }) &&
    hasOneColumn({ column: endColumn, character: endCharacter })
  );
}

/** Error for a range with none or both. */
export const rangeColumns = {
  error: "Give for start and end exactly one of Column (counted from 1) and Character (counted from 0).",
  path: ["startColumn"],
};

/** Converts a range in the input to one of the protocol. */
export function protocolRange(range: WrittenRange) {
  const { startLine, startColumn, startCharacter, endLine, endColumn, endCharacter } = range;
  return {
    start: protocolPosition({ line: startLine, column: startColumn, character: startCharacter }),
    end: protocolPosition({ line: endLine, column: endColumn, character: endCharacter }),
  };
}
