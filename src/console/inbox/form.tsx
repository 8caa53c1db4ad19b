import type { ComponentChildren } from "preact";
import type { AnswerOutcome } from "./answer.ts";

/** What every form of an answer gets. */
export interface FormProps {
  /** Whether the card takes an answer now. */
  isReady: boolean;
  send: (answer: AnswerOutcome) => Promise<void>;
  back: () => void;
}

/** The end of a form: the button that answers, and the way back. */
export function FormEnd({ back, children }: { back: () => void; children: ComponentChildren }) {
  return (
    <div class="answers">
      {children}
      <button type="button" onClick={back}>
        Back <kbd>Esc</kbd>
      </button>
    </div>
  );
}
