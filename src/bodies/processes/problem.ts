/** A problem of a tool or plugin file; `line` is 0 if unknown. */
export interface Problem {
  path: string;
  line: number;
  reason: string;
}
