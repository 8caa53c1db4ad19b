import { useSignal } from "@preact/signals";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { momentOf } from "../../view/quantities.ts";
import { visibleText } from "../parts/visible-text.ts";
import type { AskGroup } from "./ask-list.ts";
import { FormEnd, type FormProps } from "./form.tsx";

/** The form that selects the grant to save with "always", in the words of the service; the narrowest is preselected. */
export function OffersForm({ group, isReady, send, back }: FormProps & { group: AskGroup }) {
  const asking = group.open.filter(({ offers }) => offers.length > 0);
  const [main, ...others] = asking;
  const chosen = useSignal(main?.offers[0]?.id ?? "");
  if (main === undefined) return null;
  return (
    <form
      class="answer-form"
      onSubmit={(event) => {
        event.preventDefault();
        void send({ reply: PermissionReply.ALWAYS, offerId: chosen.value });
      }}
    >
      <fieldset class="offers">
        <legend>From now on, allow without asking:</legend>
        {main.offers.map(({ id, text, expires }, i) => (
          <label key={id}>
            <input
              type="radio"
              name="offer"
              value={id}
              checked={chosen.value === id}
              ref={(input) => {
                if (i === 0 && input !== null && document.activeElement?.closest(".offers") == null) input.focus();
              }}
              onChange={() => {
                chosen.value = id;
              }}
            />
            <span>
              {visibleText(text)}
              {expires > 0 && <small> (until {momentOf(expires)})</small>}
            </span>
          </label>
        ))}
      </fieldset>
      {others.length > 0 && (
        <p class="hint">Also saved: {others.map(({ offers }) => visibleText(offers[0]?.text ?? "")).join("; ")}</p>
      )}
      <p class="hint">Rules that deny still apply. You can revoke this under Policy.</p>
      <FormEnd back={back}>
        <button type="submit" class="primary" aria-disabled={!isReady}>
          Approve and remember
        </button>
      </FormEnd>
    </form>
  );
}
