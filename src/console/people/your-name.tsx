import { createClient } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { PersonService } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { boundTo } from "../parts/bound.ts";
import { useAttempt } from "../shell/load.ts";
import type { PageProps } from "../shell/page.tsx";
import "./people.css";

/** Asks a person who signed in for the name that the record shows. */
export function YourName({ connection }: PageProps) {
  const { person } = connection.server;
  const isSaved = useSignal(false);
  const text = useSignal("");
  const { failure, attempt } = useAttempt();
  if (person === undefined || isSaved.value) return null;
  const send = () =>
    attempt(async () => {
      const { renamePerson } = createClient(PersonService, connection.transport);
      await renamePerson({ id: person.id, name: text.value.trim() });
      isSaved.value = true;
    });
  return (
    <form
      class="your-name"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <label for="your-name">Your name, as the record of your answers shows it</label>
      <input id="your-name" required maxLength={64} autocomplete="name" {...boundTo(text)} />
      <button type="submit">Save</button>
      {failure !== "" && <span role="alert">{failure}</span>}
    </form>
  );
}
