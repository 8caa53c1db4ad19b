import type { ComponentChildren } from "preact";
import type { AnswerOutcome } from "./answer.ts";

/** The properties of every answer form. */
export interface FormProps {
  /** True while the card accepts an answer. */
  isReady: boolean;
  send: (answer: AnswerOutcome) => Promise<void>;
  back: () => void;
}

/** At once: what is typed after the key that opened a form is meant for it. */
export const focusFirst = (form: HTMLElement | null) => form?.querySelector<HTMLElement>("input, textarea")?.focus();

/** The buttons of a form: answer and back. */
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
