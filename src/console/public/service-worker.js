// Shows pushes as notifications and opens the request of one that is tapped. It stores nothing, answers no request of the page, and
// never approves. Each push shows a notification: a browser that gets one without ends the subscription.

addEventListener("push", (event) => {
  event.waitUntil(show(event.data));
});

async function show(data) {
  const { id, phase, title, body, risky } = read(data);
  const isOpen = phase !== "settled";
  await registration.showNotification(title, {
    body,
    // The outcome takes the place of the request.
    tag: id,
    renotify: isOpen,
    silent: !isOpen,
    requireInteraction: isOpen && risky,
    icon: "/icon-192.png",
    badge: "/icon-192.png",
    data: { id },
  });
}

function read(data) {
  try {
    const { id, phase, title, body, risky } = data.json();
    if (/^(?:per_[\w-]{1,64}|test)$/.test(id))
      return { id, phase, title: String(title), body: String(body), risky: risky === true };
  } catch {
    // A message in another form is shown as one without content.
  }
  return { id: "toolgate", phase: "opened", title: "Toolgate: a request waits", body: "", risky: false };
}

addEventListener("notificationclick", (event) => {
  event.notification.close();
  const { id } = event.notification.data ?? {};
  // The address is of this service, whatever a message says.
  event.waitUntil(open(/^per_/.test(id) ? `/r/${id}` : "/"));
});

async function open(path) {
  const windows = await clients.matchAll({ type: "window", includeUncontrolled: true });
  const [first] = windows.filter(({ url }) => new URL(url).origin === location.origin);
  if (first === undefined) return await clients.openWindow(path);
  first.postMessage({ open: path });
  await first.focus();
}

// A new version takes over at once: it has no state.
addEventListener("install", () => {
  skipWaiting();
});
