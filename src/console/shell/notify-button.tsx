import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { notify } from "./notices.ts";
import { pathOf, type Route } from "./route.ts";

/** Requests permission for notifications; once granted, notifies of asks that arrive while the page is hidden. */
export function NotifyButton({ feed, route }: { feed: AskFeed; route: Route }) {
  const permission = useSignal("Notification" in globalThis ? Notification.permission : "denied");
  useEffect(() => {
    feed.onNew((ask) => {
      if (permission.value !== "granted" || !document.hidden) return;
      notify(ask, () => route.go(pathOf("requests", ask.id)));
    });
  }, [feed]);
  if (permission.value !== "default") return null;
  const request = async () => {
    permission.value = await Notification.requestPermission();
  };
  return (
    <button type="button" class="quiet" onClick={() => void request()}>
      Notify me of new requests
    </button>
  );
}
