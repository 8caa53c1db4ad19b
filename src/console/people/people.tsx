import { type Client, createClient } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Credential } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { type PersonRecord, PersonService } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { personName } from "../../view/people.ts";
import { momentOf } from "../../view/quantities.ts";
import { boundTo } from "../parts/bound.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useArmed } from "../shell/armed.ts";
import { failureText, useAttempt, useLoaded } from "../shell/load.ts";
import { ListPage, type PageProps } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { addPasskey } from "./sign.ts";
import "./people.css";

/** The persons who signed in, with their devices. Approvers change themselves; an admin invites, and changes all. */
export function PeoplePage({ connection }: PageProps) {
  const service = useMemo(() => createClient(PersonService, connection.transport), [connection]);
  const list = useLoaded(
    (signal) => Array.fromAsync(pagesOf((page) => service.listPeople(page, { signal }))),
    [service],
  );
  const { failure, attempt } = useAttempt();
  const people = list.value?.flatMap((page) => page.people);
  const change: Change = (work) => attempt(work).then(list.reload);
  return (
    <ListPage title="People" list={list} failure={failure}>
      {connection.may("admin") && <Invite connection={connection} />}
      {people?.length === 0 && <p class="soft">No person has signed in with a code.</p>}
      <ul class="cards">
        {people?.map((record) => (
          <PersonCard key={record.id} {...{ record, connection, service, change }} />
        ))}
      </ul>
    </ListPage>
  );
}

type Change = (work: () => Promise<unknown>) => Promise<void>;

function PersonCard({
  record,
  connection,
  service,
  change,
}: {
  record: PersonRecord;
  connection: ConsoleConnection;
  service: Client<typeof PersonService>;
  change: Change;
}) {
  const { id, person, revoked, devices, accounts, passkeys, invitedBy } = record;
  const isSelf = connection.server.person?.id === id;
  const mayChange = (isSelf || connection.may("admin")) && revoked === 0;
  const name = useSignal(person?.name ?? "");
  const code = useSignal("");
  const link = async () => {
    code.value = `Type this code in Slack: ${(await service.linkAccount({})).code}`;
  };
  const facts = [
    `known as ${person?.issuer}:${person?.subject}`,
    ...(person?.groups.length ? [`groups ${person.groups.join(", ")}`] : []),
    ...(invitedBy === "" ? [] : [`invited by ${invitedBy}`]),
  ];
  return (
    <li class="card" data-ended={revoked > 0}>
      <p class="card-head">
        <b>{person && personName(person, visibleText)}</b>
        {isSelf && (
          <span class="mark" data-kind="look">
            you
          </span>
        )}
        {revoked > 0 && (
          <span class="mark" data-kind="beyond">
            revoked {momentOf(revoked)}
          </span>
        )}
      </p>
      <p class="soft">{visibleText(facts.join(" · "))}</p>
      {mayChange && (
        <form
          class="person-name"
          onSubmit={(event) => {
            event.preventDefault();
            void change(() => service.renamePerson({ id, name: name.value.trim() }));
          }}
        >
          <label for={`name-${id}`}>Name</label>
          <input id={`name-${id}`} required maxLength={64} {...boundTo(name)} />
          <button type="submit" class="quiet">
            Rename
          </button>
        </form>
      )}
      <ul class="devices">
        {devices.map((device) => (
          <Device
            key={device.id}
            device={device}
            onRevoke={() => change(() => connection.credentials.revokeCredential({ id: device.id }))}
          />
        ))}
        {accounts.map((account) => (
          <li key={account.id}>
            {account.id}
            {mayChange && (
              <Sure
                words="Unlink"
                onSure={() => change(() => service.unlinkAccount({ personId: id, id: account.id }))}
              />
            )}
          </li>
        ))}
        {passkeys.map((passkey) => (
          <li key={passkey.id}>
            <span>
              <b>{visibleText(passkey.label)}</b> <small>passkey</small>
              <br />
              <small>{passkey.used === 0 ? "not used yet" : `last used ${momentOf(passkey.used)}`}</small>
            </span>
            {mayChange && (
              <Sure
                words="Remove"
                onSure={() => change(() => service.removePasskey({ personId: id, id: passkey.id }))}
              />
            )}
          </li>
        ))}
      </ul>
      {isSelf && connection.server.publicUrl !== "" && (
        <button type="button" class="quiet" onClick={() => change(() => addPasskey(service, connection))}>
          Add a passkey
        </button>
      )}
      {isSelf && (
        <button type="button" class="quiet" onClick={() => change(link)}>
          {code.value || "Link Slack"}
        </button>
      )}
      {mayChange && <Sure words="Revoke this person" onSure={() => change(() => service.revokePerson({ id }))} />}
    </li>
  );
}

function Device({ device, onRevoke }: { device: Credential; onRevoke: () => Promise<void> }) {
  const { id, label, lastSeen, revoked, expires } = device;
  const hasEnded = revoked > 0 || expires <= Date.now();
  return (
    <li>
      <span>
        <b>{visibleText(label)}</b>
        <small>{id}</small>
        <small>{lastSeen === 0 ? "not seen yet" : `last seen ${momentOf(lastSeen)}`}</small>
        <small>{revoked > 0 ? `revoked ${momentOf(revoked)}` : `until ${momentOf(expires)}`}</small>
      </span>
      {!hasEnded && <Sure words="End this sign-in" onSure={onRevoke} />}
    </li>
  );
}

/** Time in which a second press counts. */
const sureMs = 10_000;

/** A button that acts on the second press; the second one of a double click is none. */
function Sure({ words, onSure }: { words: string; onSure: () => Promise<void> }) {
  const isAsked = useSignal(false);
  const isInert = !useArmed(String(isAsked.value)) && isAsked.value;
  useEffect(() => {
    const timer = setTimeout(() => {
      isAsked.value = false;
    }, sureMs);
    return () => clearTimeout(timer);
  }, [isAsked.value]);
  return (
    <button
      type="button"
      class={isAsked.value ? "danger" : "quiet"}
      aria-disabled={isInert}
      onClick={() => {
        if (isInert) return;
        if (isAsked.value) void onSure();
        isAsked.value = !isAsked.value;
      }}
    >
      {isAsked.value ? `${words}: press again` : words}
    </button>
  );
}

/** Creates the code with which a new person signs in. */
function Invite({ connection }: { connection: ConsoleConnection }) {
  const name = useSignal("");
  const shown = useSignal("");
  const invite = async (event: Event) => {
    event.preventDefault();
    try {
      const { code } = await connection.credentials.createCode({ newPerson: name.value.trim() });
      shown.value = `${location.origin}/#code=${code}`;
      name.value = "";
    } catch (error) {
      shown.value = failureText(error);
    }
  };
  return (
    <form class="person-name" onSubmit={(event) => void invite(event)}>
      <label for="invite">Invite</label>
      <input id="invite" maxLength={64} placeholder="Name" {...boundTo(name)} />
      <button type="submit">Create a link</button>
      {shown.value !== "" && (
        <p role="status">
          <code>{shown.value}</code> is valid once, for 10 minutes.
        </p>
      )}
    </form>
  );
}
