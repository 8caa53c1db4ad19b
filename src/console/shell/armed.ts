import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { inertMs } from "../../view/asks.ts";

/** Returns true once the item named by `key` has been visible long enough; starts over when it changes or the page was hidden. */
export function useArmed(key: string): boolean {
  const armed = useSignal("");
  useEffect(() => {
    let timer = 0;
    const begin = () => {
      clearTimeout(timer);
      armed.value = "";
      if (document.hidden) return;
      timer = window.setTimeout(() => {
        armed.value = key;
      }, inertMs);
    };
    begin();
    document.addEventListener("visibilitychange", begin);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", begin);
    };
  }, [key]);
  // Compares keys: the previous render may have armed another one.
  return armed.value === key;
}
