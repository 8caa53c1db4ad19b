import type { Command } from "commander";
import { findLogin, removeLogins } from "../../client/stored-logins.ts";
import { withServer } from "../command.ts";
import type { CliContext } from "../context.ts";

/** Defines `toolgate logout`. */
export function defineLogout(command: Command, context: CliContext): void {
  command.description("Revoke the sign-in of this terminal and remove it").action(() =>
    withServer(context, command, "approver", async (server, screen) => {
      const { env } = context.io;
      const login = findLogin(server.url, env);
      removeLogins(server.url, env);
      if (login === undefined) {
        screen.note(`no sign-in is stored for ${server.url}`);
        return undefined;
      }
      await server
        .as({ value: login.token, source: "the stored sign-in was sent" })
        .credentials.revokeCredential(login);
      screen.note(`signed out at ${server.url}`);
      return undefined;
    }),
  );
}
