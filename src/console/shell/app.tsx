import { useSignal, useSignalEffect } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { type AskFeed, createAskFeed } from "../inbox/ask-feed.ts";
import { groupByCall } from "../inbox/ask-list.ts";
import { InboxPage } from "../inbox/inbox-page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { AddDevice } from "./add-device.tsx";
import { KeyHelp } from "./key-help.tsx";
import { lazyPage } from "./lazy-page.tsx";
import { showWaiting } from "./notices.ts";
import { NotifyButton } from "./notify-button.tsx";
import { Empty, type PageProps } from "./page.tsx";
import type { Route } from "./route.ts";
import type { SignIn } from "./sign-in.ts";
import { SignInPage } from "./sign-in-page.tsx";

const Sessions = lazyPage(async () => (await import("../session/sessions.tsx")).SessionsPage);
const Policy = lazyPage(async () => (await import("../policy/policy.tsx")).PolicyPage);
const Tools = lazyPage(async () => (await import("../tools/tools.tsx")).Tools);
const Sources = lazyPage(async () => (await import("../sources/sources.tsx")).SourcesPage);
const Workers = lazyPage(async () => (await import("../workers/workers.tsx")).WorkersPage);

const pages: Readonly<Record<string, { title: string; icon: string; Page: FunctionComponent<PageProps> }>> = {
  inbox: { title: "Inbox", icon: "M3 13h5l1.5 3h5L16 13h5M5 5h14l2 8v6H3v-6z", Page: InboxPage },
  sessions: { title: "Sessions", icon: "M4 6h10M4 12h16M4 18h7M18 5v2M15 17v2", Page: Sessions },
  policy: { title: "Policy", icon: "M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM9 12l2 2 4-4", Page: Policy },
  tools: { title: "Tools", icon: "M14 7a4 4 0 0 1 5-4l-2.5 3 1.5 1.5 3-2.5a4 4 0 0 1-5 5L7 19l-2-2z", Page: Tools },
  sources: { title: "Sources", icon: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5v.1M8 16.5v.1", Page: Sources },
  workers: { title: "Workers", icon: "M5 4h6v6H5zM13 14h6v6h-6zM8 10v7h5M16 14V7h-5", Page: Workers },
};

/** The console: the sign-in page or, when signed in, the pages. */
export function App({ signIn, route }: { signIn: SignIn; route: Route }) {
  const signedIn = signIn.current.value;
  if (signedIn.state === "in") return <Shell connection={signedIn.connection} signIn={signIn} route={route} />;
  return <SignInPage signIn={signIn} />;
}

function Shell({ connection, signIn, route }: { connection: ConsoleConnection; signIn: SignIn; route: Route }) {
  const feed = useMemo(() => createAskFeed(connection), [connection]);
  useEffect(() => connection.stream.close, [connection]);
  const waiting = useSignal(0);
  /** On a phone: the sign-in, devices and notifications are shown. */
  const isOpen = useSignal(false);
  useSignalEffect(() => {
    waiting.value = groupByCall(feed.asks.value).filter(({ open }) => open.length > 0).length;
  });
  // A request is shown in the inbox.
  const current = route.page.value === "requests" ? "inbox" : route.page.value;
  const { title, Page } = pages[current] ?? { title: "Nothing here", Page: NotFound };
  useEffect(() => showWaiting(waiting.value, pages[current]?.title ?? ""), [waiting.value, current]);

  return (
    <div class="shell">
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to content
      </button>
      <aside class="side" data-open={isOpen.value}>
        <div class="brand">
          <Icon path="M6 20V11a6 6 0 0 1 12 0v9M12 5v15" />
          Toolgate
        </div>
        <nav aria-label="Pages">
          {Object.entries(pages).map(([name, page]) => (
            <a key={name} href={`#/${name}`} aria-current={current === name ? "page" : undefined}>
              <Icon path={page.icon} />
              {page.title}
              {name === "inbox" && waiting.value > 0 && (
                <span class="badge">
                  {waiting.value > 99 ? "99+" : waiting.value}
                  <span class="unseen"> waiting</span>
                </span>
              )}
            </a>
          ))}
          <button
            type="button"
            class="account"
            aria-expanded={isOpen.value}
            onClick={() => {
              isOpen.value = !isOpen.value;
            }}
          >
            <Icon path="M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 20c1-4 4-6 8-6s7 2 8 6" />
            You
          </button>
        </nav>
        <div class="side-foot">
          <NotifyButton feed={feed} route={route} />
          <Live feed={feed} />
          <Who connection={connection} signIn={signIn} />
        </div>
      </aside>
      <main id="main" tabIndex={-1} aria-label={title}>
        <Page connection={connection} feed={feed} route={route} />
      </main>
      <KeyHelp />
      <p class="unseen" role="status">
        {waiting.value === 0 ? "Nothing is waiting for an answer" : `${waiting.value} waiting for an answer`}
      </p>
    </div>
  );
}

function Live({ feed }: { feed: AskFeed }) {
  const liveness = feed.liveness.value;
  const words = {
    live: "Live",
    connecting: "Connecting…",
    lost: "Not live: connection lost, trying again",
    refused: "Not live: the service refuses this token",
  };
  return (
    <p class="live" data-liveness={liveness} role={liveness === "live" ? undefined : "alert"}>
      <span class="dot" />
      {words[liveness]}
    </p>
  );
}

function Who({ connection, signIn }: { connection: ConsoleConnection; signIn: SignIn }) {
  const { server } = connection;
  const isOpenToAll = server.principal === "anonymous";
  return (
    <div class="who">
      <span>
        <b>{server.principal}</b>
        <small>{server.roles.join(", ")}</small>
      </span>
      {connection.may("approver", "admin") && !isOpenToAll && <AddDevice connection={connection} />}
      <button type="button" class="quiet" onClick={() => void signIn.leave()}>
        Sign out
      </button>
    </div>
  );
}

function NotFound() {
  return (
    <Empty title="Page not found">
      <a href="#/inbox">Go to the inbox</a>
    </Empty>
  );
}

function Icon({ path }: { path: string }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
