import { useSignal } from "@preact/signals";
import { encode } from "uqr";
import { useAttempt } from "../shell/load.ts";
import { type PageProps, ProblemText } from "../shell/page.tsx";

/** Creates a one-time code and shows it, with a link and its QR code where another machine can reach an address of the service. */
export function AddDevice({ connection: { credentials, server } }: Pick<PageProps, "connection">) {
  const code = useSignal("");
  const { failure, attempt } = useAttempt();
  const request = async () => {
    code.value = (await credentials.createCode({})).code;
  };
  const origin = [location.origin, server.publicUrl].find((url) => url !== "" && !isLoopback(new URL(url).hostname));
  const link = `${origin}/#code=${code.value}`;
  return (
    <>
      <button type="button" class="quiet" onClick={() => void attempt(request)}>
        Add a device
      </button>
      {code.value !== "" && (
        <div class="add-device" role="status">
          <p>Type this code on the sign-in page of the other device. It is valid once, for 10 minutes.</p>
          <p>
            <code>{code.value}</code>
          </p>
          {origin === undefined ? (
            <p>
              {location.origin} reaches this machine only. For a phone start the service with <code>--listen</code>, an
              address that the phone can reach, TLS and that name in <code>hosts</code>, or forward the port to the
              phone.
            </p>
          ) : (
            <>
              <p>Or scan this with a phone:</p>
              <QrCode text={link} />
              <p>
                <code>{link}</code>
              </p>
            </>
          )}
          <button type="button" class="quiet" onClick={() => (code.value = "")}>
            Close
          </button>
        </div>
      )}
      <ProblemText text={failure} />
    </>
  );
}

/** Draws a text in black on white, which cameras read on a dark page, too. */
function QrCode({ text }: { text: string }) {
  const { size, data } = encode(text, { border: 2 });
  const modules = data.flatMap((row, y) => row.flatMap((isDark, x) => (isDark ? [`M${x} ${y}h1v1h-1z`] : [])));
  return (
    <svg class="qr-code" viewBox={`0 0 ${size} ${size}`} role="img" aria-label="QR code of the link">
      <path d={modules.join("")} />
    </svg>
  );
}

function isLoopback(host: string): boolean {
  return /^(localhost|127\..*|\[::1\])$/.test(host);
}
