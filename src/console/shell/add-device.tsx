import { useSignal } from "@preact/signals";
import type { ConsoleConnection } from "../stream/connection.ts";
import { failureText } from "./load.ts";

/** Creates a one-time code and shows it; the link for the other browser only where another machine can reach this address. */
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
          <p>Type this code on the sign-in page of the other device. It is valid once, for 10 minutes.</p>
          <p>
            <code>{code.value}</code>
          </p>
          {isLoopback(location.hostname) ? (
            <p>
              {location.origin} reaches this machine only. For a phone start the service with <code>--listen</code>, an
              address that the phone can reach, TLS and that name in <code>hosts</code>, or forward the port to the
              phone.
            </p>
          ) : (
            <p>
              <code>{`${location.origin}/#code=${code.value}`}</code>
            </p>
          )}
          <button type="button" class="quiet" onClick={close}>
            Close
          </button>
        </div>
      )}
      {problem.value !== "" && <p role="alert">{problem.value}</p>}
    </>
  );
}

function isLoopback(host: string): boolean {
  return /^(localhost|127\..*|\[::1\])$/.test(host);
}
