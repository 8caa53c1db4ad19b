import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

/** The current time in ms; updates the component every second. */
export function useNow(): number {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      now.value = Date.now();
    }, 1_000);
    return () => clearInterval(timer);
  }, []);
  return now.value;
}
