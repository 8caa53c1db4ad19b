import { render } from "preact";
import { App } from "./shell/app.tsx";
import { createRoute } from "./shell/route.ts";
import { createSignIn } from "./shell/sign-in.ts";

const root = document.getElementById("app");
if (root === null) throw new Error("the page has no #app");
// The token leaves the address before anything else looks at it.
const signIn = createSignIn();
render(<App signIn={signIn} route={createRoute()} />, root);
