import { render } from "preact";
import { App } from "./shell/app.tsx";
import { createRoute, openLinkedRequest } from "./shell/route.ts";
import { createSignIn } from "./shell/sign-in.ts";

const root = document.getElementById("app");
if (root === null) throw new Error("the page has no #app");
openLinkedRequest();
// Removes the token from the address before other code can read it.
const signIn = createSignIn();
render(<App signIn={signIn} route={createRoute()} />, root);
