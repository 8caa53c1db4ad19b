/** The mistakes, and the case that is about each. */
export const mistakes = {
  "reads the old connection": "start on an old connection",
  "enters an assignment twice": "stale assignment",
  "drops results before their receipt": "result cut",
  "sends nothing again after a cut": "output cut often",
  "ignores cancel": "cancel",
  "denies a body that it entered": "probe",
  "leaves before it may": "not entered",
  "never beats": "silence and self-stop",
  "sends an open request once": "ask across a cut",
  "goes on after `ended`": "ended early",
  "leaves without `ended`": "ended late",
} as const;

/** A mistake of the broken worker. */
export type Mistake = keyof typeof mistakes;
