import { useSignal } from "@preact/signals";
import type { ConsoleConnection } from "../stream/connection.ts";
import { failureText } from "./load.ts";

/** Creates a one-time code and shows it, with the link that another browser opens. */
export function AddDevice({ connection }: { connection: ConsoleConnection }) {
  const code = useSignal("");
  const problem = useSignal("");
  const request = async () => {
    try {
      code.value = (await connection.credentials.createCode({})).code;
      problem.value = "";
    } catch (error) {
      problem.value = failureText(error);
    }
  };
  const close = () => {
    code.value = "";
    problem.value = "";
  };
  return (
    <>
      <button type="button" class="quiet" onClick={() => void request()}>
        Add a device
      </button>
      {code.value !== "" && (
        <div class="add-device" role="status">
          <p>Open this link on the other device, or type the code there. It is valid once, for 10 minutes.</p>
          <p>
            <code>{code.value}</code>
          </p>
          <p>
            <code>{`${location.origin}/#code=${code.value}`}</code>
          </p>
          <button type="button" class="quiet" onClick={close}>
            Close
          </button>
        </div>
      )}
      {problem.value !== "" && <p role="alert">{problem.value}</p>}
    </>
  );
}
