import { RE2JS } from "@bufbuild/re2";

/** A compiled pattern of a schema. */
export interface LinearPattern {
  test(text: string): boolean;
  toString(): string;
}

/** Compiles a pattern so that matching takes time linear in the text; throws for one that needs backtracking. */
export function linearPattern(pattern: string): LinearPattern {
  try {
    const compiled = RE2JS.compile(pattern.replaceAll(/\\u([0-9a-fA-F]{4})/g, "\\x{$1}"));
    return { test: (text) => compiled.test(text), toString: () => pattern };
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new Error(
      `the pattern ${JSON.stringify(pattern)} cannot be matched in linear time (${why}); write it without lookaround and back references`,
      { cause },
    );
  }
}
