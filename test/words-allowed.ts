/** A sentence that may use a word which the lint forbids. */
export interface WordException {
  readonly file: string;
  /** A part of the sentence, as it stands in the file. */
  readonly text: string;
  readonly reason: string;
}

export const wordExceptions: readonly WordException[] = [];

/** Maximum share of a tree's doc comments that may begin with a question word. */
export const maxQuestionShare = 0.04;
