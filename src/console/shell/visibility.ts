/** Runs work while the page is visible, and aborts it while it is hidden. */
export async function whileVisible(work: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const hidden = new AbortController();
    const check = () => {
      if (document.hidden) hidden.abort();
    };
    document.addEventListener("visibilitychange", check, { signal });
    await untilVisible(signal);
    await work(AbortSignal.any([signal, hidden.signal]));
    document.removeEventListener("visibilitychange", check);
    if (!hidden.signal.aborted) return;
  }
}

function untilVisible(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (!document.hidden || signal.aborted) return resolve();
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}
