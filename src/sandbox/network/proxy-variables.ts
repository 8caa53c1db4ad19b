/** Address of the proxy in the network of each session tree. */
export const proxyAddress = { host: "127.0.0.1", port: 3128 };

const url = `http://${proxyAddress.host}:${proxyAddress.port}`;
const direct = "localhost,127.0.0.1,::1";

/** Opens a tunnel for ssh, as its ProxyCommand; bash alone, since not every machine has a program for that. */
const sshTunnel = `
exec 3<>/dev/tcp/${proxyAddress.host}/${proxyAddress.port} || exit 1
printf 'CONNECT %s:%s HTTP/1.1\\r\\nHost: %s:%s\\r\\n\\r\\n' "$1" "$2" "$1" "$2" >&3
IFS= read -r status <&3
while IFS= read -r line <&3 && [[ $line != $'\\r' ]]; do :; done
if [[ $status != "HTTP/1.1 200"* ]]; then
  cat <&3 >&2
  exit 1
fi
cat <&3 &
exec cat >&3
`;

/** Variables by which programs find the proxy. They only help: the network has no other way out. */
export const proxyVariables: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    ["http_proxy", "https_proxy", "all_proxy"].flatMap((name) => [
      [name, url],
      [name.toUpperCase(), url],
    ]),
  ),
  no_proxy: direct,
  NO_PROXY: direct,
  NODE_USE_ENV_PROXY: "1",
  TOOLGATE_SSH_TUNNEL: sshTunnel,
  GIT_SSH_COMMAND: `ssh -o 'ProxyCommand=bash -c "$TOOLGATE_SSH_TUNNEL" - %h %p'`,
};
